-- $1 protocol, $2 group; one of each for each key: $3 own sessions, $4 keys, $5 tokens, $6 reasons, $7 ids.
-- $8 whether a crash may take it back. free.sql for many keys at once.
with asked as materialized (
    select *
    from unnest($3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::uuid[])
        with ordinality as a (session, key, token, reason, id, place)
),
held as materialized (
    select l.key, a.place
    from asked as a
    join leadergroup.lock as l on l.key = a.key
    where l.session = a.session and l.token = a.token and not l.awaited and l.owner_uid is not null
    and l.group_id = $2 and not l.tombstone and l.protocol <= $1
    and exists (select from leadergroup.session as s where s.id = a.session and not s.dead)
    for no key update of l skip locked
),
freed as (
    update leadergroup.lock as l
    set owner_uid = null, owner_namespace = null, owner_name = null, session = null, grant_id = null,
        lock_timestamp = now()
    from held as h
    where l.key = h.key
    returning h.place, l.token
),
ended as (
    update leadergroup.term as t set ended_at = now(), end_reason = a.reason, end_id = a.id
    from freed as f join asked as a using (place)
    where t.key = a.key and t.token = f.token and t.ended_at is null
)
select f.place, set_config('synchronous_commit', case
           when $8 and current_setting('leadergroup.direct', true) = 'on' then 'off'
           else current_setting('synchronous_commit')
       end, true)
from freed as f
