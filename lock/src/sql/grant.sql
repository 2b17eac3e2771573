-- $1 own session, $2 protocol, $3 jump, $4 keys, $5 expected tokens, $6 floors, $7 owner uids, $8 owner namespaces,
-- $9 owner names, $10 grant ids, $11 reasons, $12 ms to wait for fenced transactions (NULL: not at all), $13 ms that
-- ending those that take longer may take (NULL: they are not ended).
--
-- Compare-and-set on key + token + own living session, in the database's present history. The new token is above the
-- row's, the floor, everything in the history, and, in a new era, whatever a lost commit may have handed out.
-- FOR UPDATE: a change of token conflicts with everything that leans on the row.
--
-- The old holder's fenced transactions (docs/fencing.md) have to end first. Each of them shares the key's advisory lock,
-- which is wanted here exclusively, and has the row locked, too, unless `fenced` is set. Waiting comes before any row is
-- locked; a row that changed meanwhile is seen as it is then.
--
-- The planner takes a batch for ten rows, and what was judged for one. So what a step needs is handed on from the one before
-- rather than joined again, and the last join is FULL, which cannot be made by comparing each with each.
with gate as materialized (
    select leadergroup.fence_pass(a.key, $12::integer, $13::integer) as outcome
    from unnest($4::text[]) as a (key)
    where $12::integer is not null
),
era as materialized (
    select m.era from leadergroup.meta as m join leadergroup.present as p using (system_identifier, timeline)
),
own as materialized (
    select s.id from leadergroup.session as s where s.id = $1 and not s.dead
    for key share
),
asked as materialized (
    select * from unnest($4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::text[], $10::uuid[],
                         $11::text[])
        with ordinality as a (key, expected, floor, owner_uid, owner_namespace, owner_name, grant_id, reason, place)
),
held as materialized (
    select a.place, l.key, l.group_id, l.token, l.era, l.grant_id, l.owner_uid, l.tombstone, l.protocol, l.fenced,
           a.expected, a.floor, a.grant_id as new_grant, a.owner_uid as new_uid, a.owner_namespace, a.owner_name,
           a.reason
    from asked as a join leadergroup.lock as l on l.key = a.key
    where l.session = $1 and not exists (select from gate where gate.outcome <> 'open')
    for update of l skip locked
),
judged as materialized (
    select h.place, h.key, h.group_id, h.token, e.era, h.new_grant, h.new_uid, h.owner_namespace, h.owner_name,
           h.reason,
           case
               when h.protocol > $2 then 'newer'
               when h.tombstone then 'tombstone'
               when h.grant_id = h.new_grant and h.owner_uid = h.new_uid then 'granted'
               when h.token <> h.expected then 'changed'
               when h.fenced and not pg_try_advisory_xact_lock(leadergroup.fence_id(h.key)) then 'fenced'
               else 'grant'
           end as verdict,
           1 + greatest(
               h.token + case when h.era <> e.era then $3 else 0 end,
               h.floor,
               e.era * $3,
               (select max(t.token) from leadergroup.term as t where t.key = h.key)
           ) as next
    from held as h cross join era as e cross join own
),
changed as (
    update leadergroup.lock as l
    set token = j.next, era = j.era, grant_id = j.new_grant, owner_uid = j.new_uid,
        owner_namespace = j.owner_namespace, owner_name = j.owner_name, lock_timestamp = now(),
        protocol = $2, fenced = l.fenced or $12::integer is not null, end_reason = null, end_id = null
    from judged as j
    where l.key = j.key and j.verdict = 'grant'
    returning l.key
),
recorded as (
    insert into leadergroup.term
        (key, token, grant_id, group_id, session, owner_uid, owner_namespace, owner_name, reason)
    select j.key, j.next, j.new_grant, j.group_id, $1, j.new_uid, j.owner_namespace, j.owner_name, j.reason
    from judged as j
    where j.verdict = 'grant'
)
select a.place,
       case
           when not exists (select from own) then 'dead'
           when not exists (select from era) then 'history'
           when j.verdict is not null then j.verdict
           when l.key is null then 'missing'
           when l.protocol > $2 then 'newer'
           when l.session is distinct from $1 then 'not-ours'
           when not pg_try_advisory_xact_lock(leadergroup.fence_id(a.key)) then 'fenced'
           else 'busy'
       end as verdict,
       l.session, l.group_id, l.protocol, (select max(gate.outcome) from gate) as gate,
       case when j.verdict = 'grant' then j.next else j.token end as token
from asked as a
full join judged as j on j.place = a.place
left join leadergroup.lock as l on l.key = a.key
