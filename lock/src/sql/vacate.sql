-- $1 own session, $2 protocol, $3 keys, $4 tokens, $5 grant ids, $6 reasons. Removes the holder; the token stays. FOR
-- NO KEY UPDATE: the old holder's open fenced transactions do not delay it; the next grant waits for them.
with own as materialized (
    select s.id from leadergroup.session as s where s.id = $1 and not s.dead
    for key share
),
asked as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::uuid[], $6::text[])
        with ordinality as a (key, token, grant_id, reason, place)
),
claimed as materialized (
    select a.place, l.key, a.grant_id, a.reason,
           case
               when l.protocol > $2 then 'newer'
               when l.tombstone then 'tombstone'
               when l.token <> a.token then 'changed'
               when l.holder_uid is null then 'done'
               else 'vacate'
           end as verdict
    from asked as a join leadergroup.lock as l on l.key = a.key
    where l.session = $1
    for no key update of l skip locked
),
judged as materialized (
    select c.* from claimed as c cross join own
),
changed as (
    update leadergroup.lock as l
    set holder_uid = null, holder_namespace = null, holder_name = null, grant_id = j.grant_id,
        lock_timestamp = clock_timestamp(), end_reason = j.reason
    from judged as j where l.key = j.key and j.verdict = 'vacate'
)
select a.place,
       case
           when not exists (select from own) then 'dead'
           when j.verdict = 'vacate' then 'done'
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
