-- $1 protocol, $2 group; one of each for each wish: $3 own sessions, $4 keys, $5 requests, $6 owner uids, $7 owner namespaces,
-- $8 owner names, $9 reasons, $10 ms of delay.
--
-- take.sql for many wishes at once: what is said there holds here. Of several wishes for one free key one is granted. What a
-- step needs is handed on from the one before: the planner knows nothing of how many there are.
with asked as materialized (
    select a.*
    from unnest($3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[])
        with ordinality as a (session, key, request, uid, namespace, name, reason, delay_ms, place)
    join leadergroup.session as s on s.id = a.session and not s.dead
),
-- First those that seem to be free: the fence's lock is not to be tried for any other key, whatever plan is chosen.
candidate as materialized (
    select a.*
    from asked as a
    join leadergroup.lock as l on l.key = a.key
    where l.session is null and l.owner_uid is null and not l.awaited
),
free as materialized (
    select c.*, l.lock_timestamp, l.end_reason, l.end_id
    from candidate as c
    join leadergroup.lock as l on l.key = c.key
    where l.session is null and l.owner_uid is null and not l.awaited and l.token > 0
    and l.era = (
        select m.era from leadergroup.meta as m
        where m.system_identifier = leadergroup.present_system() and m.timeline = leadergroup.present_timeline()
    )
    and l.group_id = $2 and not l.tombstone and l.protocol <= $1
    and l.token >= coalesce((select max(t.token) from leadergroup.term as t where t.key = l.key), 0)
    and pg_try_advisory_xact_lock(leadergroup.fence_id(c.key))
    for update of l skip locked
),
taken as (
    update leadergroup.lock as l
    set token = l.token + 1, confirmed_token = l.token + 1, session = f.session, grant_id = f.request,
        owner_uid = f.uid, owner_namespace = f.namespace, owner_name = f.name, lock_timestamp = clock_timestamp(),
        delay_ms = f.delay_ms, protocol = $1, end_reason = null, end_id = null
    from free as f
    where l.key = f.key
    returning f.*, l.token
),
recorded as (
    insert into leadergroup.term
        (key, token, grant_id, group_id, session, owner_uid, owner_namespace, owner_name, reason, confirmed_at,
         previous_ended_at, previous_end_reason, previous_end_id)
    select t.key, t.token, t.request, $2, t.session, t.uid, t.namespace, t.name, t.reason, clock_timestamp(),
           case when t.end_id is not null then t.lock_timestamp end, t.end_reason, t.end_id
    from taken as t
)
select place, token from taken
