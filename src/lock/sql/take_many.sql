-- $1 protocol, $2 group; one of each for each wish: $3 own sessions, $4 keys, $5 requests, $6 owner uids, $7 owner namespaces,
-- $8 owner names, $9 reasons, $10 ms of delay, $11 whether to queue up.
--
-- take.sql for many wishes at once: what is said there holds here. Of several wishes for one free key one is granted, and the
-- others get no verdict.
with asked as materialized (
    select *
    from unnest($3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[],
                $11::boolean[])
        with ordinality as a (session, key, request, uid, namespace, name, reason, delay_ms, queue, place)
),
-- First those that seem to be free: the fence's lock is not to be tried for any other key, whatever plan is chosen.
candidate as materialized (
    select a.key, a.place, m.era
    from asked as a
    join leadergroup.lock as l on l.key = a.key
    cross join leadergroup.meta as m join leadergroup.present as p using (system_identifier, timeline)
    where l.session is null and l.owner_uid is null and not l.awaited
    and exists (select from leadergroup.session as s where s.id = a.session and not s.dead)
    and not exists (select from leadergroup.unsettled)
    and not exists (select from leadergroup.term as t where t.key = l.key and t.token > l.token)
),
free as materialized (
    select l.key, c.place
    from candidate as c
    join leadergroup.lock as l on l.key = c.key
    where l.session is null and l.owner_uid is null and not l.awaited and l.token > 0 and l.era = c.era
    and l.group_id = $2 and not l.tombstone and l.protocol <= $1
    and pg_try_advisory_xact_lock(leadergroup.fence_id(c.key))
    for update of l skip locked
),
taken as (
    update leadergroup.lock as l
    set token = l.token + 1, confirmed_token = l.token + 1, session = a.session, grant_id = a.request,
        owner_uid = a.uid, owner_namespace = a.namespace, owner_name = a.name, lock_timestamp = now(),
        delay_ms = a.delay_ms, protocol = $1
    from free as f join asked as a using (place)
    where l.key = f.key
    returning a.place, l.token
),
recorded as (
    insert into leadergroup.term
        (key, token, grant_id, group_id, session, owner_uid, owner_namespace, owner_name, reason, confirmed_at)
    select a.key, t.token, a.request, $2, a.session, a.uid, a.namespace, a.name, a.reason, now()
    from taken as t join asked as a using (place)
)
select a.place,
       case
           when t.token is not null then 'granted'
           when l.group_id <> $2 or l.tombstone or l.protocol > $1 or h.dead or not exists (
               select from leadergroup.session as s where s.id = a.session and not s.dead
           ) then null
           when l.session = a.session and l.grant_id = a.request then 'granted'
           when h.dead is null then null
           when not a.queue then 'held'
           when exists (
               select from leadergroup.waiter as w where w.request = a.request and w.key = a.key
           ) then 'waiting'
       end as verdict,
       coalesce(t.token, l.token) as token
from asked as a
left join taken as t using (place)
left join leadergroup.lock as l on l.key = a.key
left join leadergroup.session as h on h.id = l.session
