-- $1 protocol, $2 key, $3 token, $4 grant id, $5 reason. By a person, past the session in charge: the holder goes, and the
-- charge with it, so that whoever had it has to read the row anew before the next change. The token stays.
with held as materialized (
    select l.key, l.token, l.owner_uid,
           case
               when l.protocol > $1 then 'newer'
               when l.tombstone then 'tombstone'
               when l.token <> $3 then 'changed'
               when l.owner_uid is null then 'done'
               else 'release'
           end as verdict
    from leadergroup.lock as l
    where l.key = $2
    for no key update skip locked
),
changed as (
    update leadergroup.lock as l
    set owner_uid = null, owner_namespace = null, owner_name = null, session = null, grant_id = $4,
        lock_timestamp = now()
    from held as h where l.key = h.key and h.verdict = 'release'
),
recorded as (
    update leadergroup.term as t set ended_at = now(), end_reason = $5
    from held as h where t.key = h.key and t.token = h.token and h.verdict = 'release' and t.ended_at is null
)
select 1::bigint as place,
       case
           when h.verdict = 'release' then 'done'
           when h.verdict is not null then h.verdict
           when l.key is null then 'missing'
           else 'busy'
       end as verdict,
       l.session, l.group_id, l.protocol
from (values (1)) as one (row)
left join held as h on true
left join leadergroup.lock as l on l.key = $2
