-- $1 own session, $2 protocol, $3 keys, $4 tokens. Records that everything that makes the holder of this term act has
-- been done.
with own as materialized (
    select s.id from leadergroup.session as s where s.id = $1 and not s.dead
    for key share
),
asked as materialized (
    select * from unnest($3::text[], $4::bigint[]) with ordinality as a (key, token, place)
),
claimed as materialized (
    select a.place, l.key, l.token,
           case
               when l.protocol > $2 then 'newer'
               when l.tombstone then 'tombstone'
               when l.token <> a.token or l.holder_uid is null then 'changed'
               else 'done'
           end as verdict
    from asked as a join leadergroup.lock as l on l.key = a.key
    where l.session = $1
    for no key update of l skip locked
),
judged as materialized (
    select c.* from claimed as c cross join own
),
changed as (
    update leadergroup.lock as l set confirmed_token = j.token
    from judged as j where l.key = j.key and j.verdict = 'done' and l.confirmed_token < j.token
)
select a.place,
       case
           when not exists (select from own) then 'dead'
           when j.verdict is not null then j.verdict
           when l.key is null then 'missing'
           when l.protocol > $2 then 'newer'
           when l.session is distinct from $1 then 'unclaimed'
           else 'busy'
       end as verdict,
       l.session, l.group_id, l.protocol
from asked as a
full join judged as j on j.place = a.place -- FULL as in grant.sql
left join leadergroup.lock as l on l.key = a.key
