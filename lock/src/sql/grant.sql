-- $1 own session, $2 protocol, $3 keys, $4 expected tokens, $5 floors, $6 holders' uids, $7 namespaces, $8 names, $9
-- grant ids, $10 reasons, $11 ms to wait for fenced transactions (NULL: do not wait), $12 ms to wait for those that
-- were terminated because they took longer (NULL: do not terminate them), $13 groups.
--
-- Compare-and-set on key + group + token + own living session, in the database's present era. FOR UPDATE, so that a
-- change of token conflicts with everything that depends on the row.
--
-- The old holder's fenced transactions (docs/fencing.md) have to end first. Each of them holds the key's advisory lock
-- in shared mode; this statement needs it exclusively. It waits before it locks any row, and only in a batch of one.
--
-- The planner assumes that a batch has ten rows. So each step passes on what the next one needs, instead of joining it
-- again, and the last join is FULL, which cannot be a nested loop.
with gate as materialized (
    select p.outcome, p.blockers
    from unnest($3::text[]) as a (key) cross join leadergroup.fence_pass(a.key, $11::integer, $12::integer) as p
    where $11::integer is not null
),
era as materialized (
    select m from leadergroup.meta as m where m.history = leadergroup.history()
),
own as materialized (
    select s.id from leadergroup.session as s where s.id = $1 and not s.dead
    for key share
),
asked as materialized (
    select * from unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::uuid[],
                         $10::text[], $13::text[])
        with ordinality as a (key, expected, floor, uid, namespace, name, grant_id, reason, group_id, place)
),
claimed as materialized (
    select a.*, l.token, l.era, l.grant_id as last_grant, l.holder_uid as last_uid, l.tombstone, l.protocol
    from asked as a join leadergroup.lock as l on l.key = a.key
    where l.session = $1 and l.group_id = a.group_id and not exists (select from gate where gate.outcome <> 'open')
    for update of l skip locked
),
judged as materialized (
    select c.*, (e.m).era as present,
           case
               when c.protocol > $2 then 'newer'
               when c.tombstone then 'tombstone'
               when c.last_grant = c.grant_id and c.last_uid = c.uid then 'granted'
               when c.token <> c.expected then 'changed'
               when not pg_try_advisory_xact_lock(leadergroup.fence_id(c.key)) then 'fenced'
               else 'grant'
           end as verdict,
           leadergroup.next_token(
               c.token, c.era, (select max(t.token) from leadergroup.term as t where t.key = c.key), c.floor, e.m
           ) as next
    from claimed as c cross join era as e cross join own
),
changed as (
    update leadergroup.lock as l
    set token = j.next, era = j.present, grant_id = j.grant_id, holder_uid = j.uid, holder_namespace = j.namespace,
        holder_name = j.name, reason = j.reason, lock_timestamp = clock_timestamp(), protocol = $2,
        end_reason = j.reason
    from judged as j
    where l.key = j.key and j.verdict = 'grant'
)
select a.place,
       case
           when not exists (select from own) then 'dead'
           when not exists (select from era) then 'history'
           when j.verdict is not null then j.verdict
           when l.key is null then 'missing'
           when l.protocol > $2 then 'newer'
           when l.session is distinct from $1 or l.group_id <> a.group_id then 'unclaimed'
           else 'busy'
       end as verdict,
       -- Only for the refusals that name them. The answer must fit into the buffers between server and client even if
       -- the client does not read it: otherwise the server waits in the middle of the transaction, with the rows
       -- locked.
       case when j.verdict is null then l.session end as session,
       case when j.verdict is null or j.verdict = 'newer' then l.protocol end as protocol,
       (select gate.outcome from gate) as gate, (select gate.blockers from gate) as blockers,
       case when j.verdict = 'grant' then j.next else j.token end as token
from asked as a
full join judged as j on j.place = a.place
left join leadergroup.lock as l on l.key = a.key
