-- $1 protocol, $2 group; one of each for each key: $3 own sessions, $4 keys, $5 tokens, $6 reasons, $7 ids.
-- $8 whether a crash may take it back. free.sql for many keys at once; a row that somebody else has locked is passed over.
with held as materialized (
    select l.key, a.place, a.reason, a.id
    from unnest($3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::uuid[])
        with ordinality as a (session, key, token, reason, id, place)
    join leadergroup.session as s on s.id = a.session and not s.dead
    join leadergroup.lock as l on l.key = a.key
    where l.session = a.session and l.token = a.token and not l.awaited and l.owner_uid is not null
    and l.group_id = $2 and not l.tombstone and l.protocol <= $1
    for no key update of l skip locked
),
freed as (
    update leadergroup.lock as l
    set owner_uid = null, owner_namespace = null, owner_name = null, session = null, grant_id = null,
        lock_timestamp = clock_timestamp(), end_reason = h.reason, end_id = h.id
    from held as h
    where l.key = h.key
    returning h.place
)
select f.place, (
    select set_config('synchronous_commit', case
        when $8 and current_setting('leadergroup.direct', true) = 'on' then 'off'
        else current_setting('synchronous_commit')
    end, true)
)
from freed as f
