-- $1 own session, $2 protocol, $3 keys. Gives up claims, so that others may claim the keys; holders and tokens stay.
with own as materialized (
    select s.id from leadergroup.session as s where s.id = $1 and not s.dead
    for key share
),
asked as materialized (
    select * from unnest($3::text[]) with ordinality as a (key, place)
),
claimed as materialized (
    select a.place, l.key, l.protocol
    from asked as a join leadergroup.lock as l on l.key = a.key
    where l.session = $1
    for no key update of l skip locked
),
changed as (
    update leadergroup.lock as l set session = null
    from claimed as c cross join own
    where l.key = c.key and c.protocol <= $2
    returning c.place
)
select a.place,
       case
           when not exists (select from own) then 'dead'
           when c.place is not null then 'done'
           when l.key is null then 'missing'
           when l.protocol > $2 then 'newer'
           when l.session is null then 'done'
           when l.session <> $1 then 'unclaimed'
           else 'busy'
       end as verdict,
       l.session, l.group_id, l.protocol, c.place is not null as changed
from asked as a
full join changed as c on c.place = a.place -- FULL as in grant.sql
left join leadergroup.lock as l on l.key = a.key
