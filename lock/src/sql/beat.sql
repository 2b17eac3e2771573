-- $1 own session. One statement: the own counter goes up if the session lives, and all living sessions come back, the own one
-- in any case: dead ones are kept for a while, and may be many. Every row repeats the few values about the database; they
-- ride along instead of costing a round trip.
with mine as (
    update leadergroup.session set beat = beat + 1, seen = now()
    where id = $1 and not dead
    returning id, beat
)
select s.id, s.name, coalesce(mine.beat, s.beat) as beat, s.ttl_ms, s.dead,
       mine.id is not null as mine,
       m.era, m.system_identifier, m.timeline,
       not exists (select from leadergroup.unsettled) as settled,
       (m.system_identifier, m.timeline) = (p.system_identifier, p.timeline) as same_history,
       v.works_with,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint as clock_us
from (select max(works_with) as works_with from leadergroup.schema_version) as v
cross join leadergroup.meta as m
cross join leadergroup.present as p
left join (leadergroup.session as s left join mine on mine.id = s.id) on not s.dead or s.id = $1
