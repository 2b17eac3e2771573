-- $1 id, $2 name, $3 ttl in ms. The caller makes the id, so repeating a registration whose answer was lost is harmless.
-- What the session will hold was granted in this history or a later one, which it comes back for.
with registered as (
    insert into leadergroup.session (id, name, ttl_ms) values ($1, $2, $3)
    on conflict (id) do nothing
)
select m.era, m.system_identifier, m.timeline,
       (m.system_identifier, m.timeline) = (p.system_identifier, p.timeline) as same_history
from leadergroup.meta as m cross join leadergroup.present as p
