-- $1 own session, $2 ttl in ms. Counts as a heartbeat, and so says which history it was heard in. No row if it is dead.
with mine as (
    update leadergroup.session set ttl_ms = $2, beat = beat + 1, seen = now()
    where id = $1 and not dead
    returning id
)
select m.era, m.system_identifier, m.timeline,
       (m.system_identifier, m.timeline) = (p.system_identifier, p.timeline) as same_history
from mine cross join leadergroup.meta as m cross join leadergroup.present as p
