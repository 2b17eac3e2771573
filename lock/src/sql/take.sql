-- $1 own session, $2 protocol, $3 key, $4 group, $5 request, $6 owner uid, $7 owner namespace, $8 owner name, $9 reason,
-- $10 ms of delay.
--
-- The short way of leadergroup.acquire: a key that was given up in order, and that nobody waits for, is taken. No row: the
-- long way finds out why. Reads and locks as little as can be; with many programs at work each table that a statement
-- touches costs a tenth of it.
--
-- What others may change at any time, and the change rests on, is in the row itself and looked at again should it have been
-- changed since the statement's snapshot was made. `awaited` is set by whoever queues up. FOR UPDATE: the update alone would not
-- conflict with a fence that locks the row because its snapshot is older than this. A row that somebody else has locked is
-- passed over: it costs those nothing who ask for others.
--
-- The own session is read and not locked: a death mark that comes at the same time counts as coming after this, as if it
-- came a moment later; no program believes in a grant when its session may be marked dead.
--
-- The key's last term was of the era that tokens are granted in, so that one has settled. A row that is behind its history was put
-- back past its guards.
with free as materialized (
    select l.key, l.lock_timestamp, l.end_reason, l.end_id
    from leadergroup.lock as l
    where l.key = $3 and l.session is null and l.owner_uid is null and not l.awaited and l.token > 0
    and l.group_id = $4 and not l.tombstone and l.protocol <= $2
    and l.era = (
        select m.era from leadergroup.meta as m
        where m.system_identifier = leadergroup.present_system() and m.timeline = leadergroup.present_timeline()
    )
    and l.token >= coalesce((select max(t.token) from leadergroup.term as t where t.key = l.key), 0)
    and exists (select from leadergroup.session as s where s.id = $1 and not s.dead)
    -- No fenced transaction of the term before is under way.
    and pg_try_advisory_xact_lock(leadergroup.fence_id(l.key))
    for update of l skip locked
),
taken as (
    update leadergroup.lock as l
    set token = l.token + 1, confirmed_token = l.token + 1, session = $1, grant_id = $5, owner_uid = $6,
        owner_namespace = $7, owner_name = $8, lock_timestamp = clock_timestamp(), delay_ms = $10, protocol = $2,
        end_reason = null, end_id = null
    from free as f
    where l.key = f.key
    returning l.token, f.lock_timestamp, f.end_reason, f.end_id
)
insert into leadergroup.term
    (key, token, grant_id, group_id, session, owner_uid, owner_namespace, owner_name, reason, confirmed_at,
     previous_ended_at, previous_end_reason, previous_end_id)
select $3, t.token, $5, $4, $1, $6, $7, $8, $9, clock_timestamp(),
       case when t.end_id is not null then t.lock_timestamp end, t.end_reason, t.end_id
from taken as t
returning 1::bigint as place, token
