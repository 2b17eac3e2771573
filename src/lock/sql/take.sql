-- $1 own session, $2 protocol, $3 key, $4 group, $5 request, $6 owner uid, $7 owner namespace, $8 owner name, $9 reason,
-- $10 ms of delay, $11 whether to queue up.
--
-- The short way of leadergroup.acquire, for what is asked most: a key that was given up in order and that nobody waits for is
-- taken, one that is held is told to be so. No verdict: the long way finds out.
--
-- What others may change at any time, and the change rests on, is in the row itself and looked at again should it have been
-- changed since the statement's snapshot was made. `awaited` is set by whoever queues up. FOR UPDATE: the update alone would not
-- conflict with a fence that locks the row because its snapshot is older than this. A row that somebody else has locked is
-- passed over and gets no verdict: it costs those nothing who ask for others.
--
-- The own session is read and not locked: a death mark that comes at the same time counts as coming after this, as if it
-- came a moment later; no program believes in a grant when its session may be marked dead.
with free as materialized (
    select l.key
    from leadergroup.lock as l
    cross join leadergroup.meta as m join leadergroup.present as p using (system_identifier, timeline)
    where l.key = $3 and l.session is null and l.owner_uid is null and not l.awaited and l.token > 0 and l.era = m.era
    and l.group_id = $4 and not l.tombstone and l.protocol <= $2
    and exists (select from leadergroup.session as s where s.id = $1 and not s.dead)
    and not exists (select from leadergroup.unsettled)
    -- Were the row put back by hand, the history would know better.
    and not exists (select from leadergroup.term as t where t.key = l.key and t.token > l.token)
    -- No fenced transaction of the term before is under way.
    and pg_try_advisory_xact_lock(leadergroup.fence_id(l.key))
    for update of l skip locked
),
taken as (
    update leadergroup.lock as l
    set token = l.token + 1, confirmed_token = l.token + 1, session = $1, grant_id = $5, owner_uid = $6,
        owner_namespace = $7, owner_name = $8, lock_timestamp = now(), delay_ms = $10, protocol = $2
    from free as f
    where l.key = f.key
    returning l.token
),
recorded as (
    insert into leadergroup.term
        (key, token, grant_id, group_id, session, owner_uid, owner_namespace, owner_name, reason, confirmed_at)
    select $3, t.token, $5, $4, $1, $6, $7, $8, $9, now()
    from taken as t
)
select case
           when t.token is not null then 'granted'
           when l.group_id <> $4 or l.tombstone or l.protocol > $2 or h.dead or not exists (
               select from leadergroup.session as s where s.id = $1 and not s.dead
           ) then null
           when l.session = $1 and l.grant_id = $5 then 'granted'
           when h.dead is null then null
           when not $11 then 'held'
           when exists (
               select from leadergroup.waiter as w where w.request = $5 and w.key = $3
           ) then 'waiting'
       end as verdict,
       coalesce(t.token, l.token) as token
from (values (1)) as one (row)
left join taken as t on true
left join leadergroup.lock as l on l.key = $3
left join leadergroup.session as h on h.id = l.session
