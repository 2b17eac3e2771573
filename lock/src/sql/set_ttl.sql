-- $1 own session, $2 ttl in ms, $3 which change it is; each has a larger number than those before it. Counts as a heartbeat,
-- and so says which history it was heard in. The same one may be repeated. No row if the session is dead, or the change is
-- an old one.
with mine as (
    update leadergroup.session set ttl_ms = $2, ttl_change = $3, beat = beat + 1, seen = now()
    where id = $1 and not dead and ttl_change <= $3
    returning id
)
select m.era, m.system_identifier, m.timeline,
       (m.system_identifier, m.timeline) = (p.system_identifier, p.timeline) as same_history
from mine cross join leadergroup.meta as m cross join leadergroup.present as p
