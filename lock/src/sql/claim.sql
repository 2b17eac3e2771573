-- $1 own session, $2 protocol, $3 keys, $4 groups, $5 may create, $6 supersedes (NULL for none).
--
-- `seen` judges each key by the statement's snapshot. `taken` locks the rows that may be taken, and checks that
-- everything the judgement depends on is unchanged, because a row may have changed since the snapshot. A session counts
-- as living unless its row says dead or was removed *in the same snapshot*; a dead session stays dead. A change takes
-- FOR KEY SHARE on the caller's session: either a death mark waits for the change, or the change finds the session
-- dead. FULL joins: the planner does not know how large a batch is, and a FULL join cannot be a nested loop.
with own as materialized (
    select s.id from leadergroup.session as s where s.id = $1 and not s.dead
    for key share
),
asked as materialized (
    select * from unnest($3::text[], $4::text[], $5::boolean[], $6::text[])
        with ordinality as a (key, group_id, may_create, supersedes, place)
),
seen as materialized (
    select a.place, a.key, a.group_id, l.session, l.group_id as old_group, l.tombstone, l.protocol,
           case
               when l.key is null then case when a.may_create then 'create' else 'missing' end
               when l.protocol > $2 then 'newer'
               when l.tombstone and (l.group_id = a.group_id or not a.may_create) then 'tombstone'
               when l.tombstone then 'revive'
               when l.group_id <> a.group_id
                    and (a.supersedes is distinct from l.group_id or (s.id <> $1 and not s.dead)) then 'foreign'
               when l.group_id <> a.group_id then 'revive'
               when l.session = $1 then 'ours'
               when not s.dead then 'claimed'
               else 'take'
           end as verdict
    from asked as a
    left join leadergroup.lock as l on l.key = a.key
    left join leadergroup.session as s on s.id = l.session
),
taken as materialized (
    select v.place, v.group_id, v.verdict, l.key
    from seen as v
    join leadergroup.lock as l
        on l.key = v.key and l.group_id = v.old_group and l.session is not distinct from v.session
        and l.tombstone = v.tombstone and l.protocol = v.protocol
    where v.verdict in ('take', 'revive')
    for no key update of l skip locked
),
changed as (
    update leadergroup.lock as l
    set session = own.id,
        group_id = t.group_id,
        tombstone = false,
        holder_uid = case when t.verdict = 'take' then l.holder_uid end,
        holder_namespace = case when t.verdict = 'take' then l.holder_namespace end,
        holder_name = case when t.verdict = 'take' then l.holder_name end,
        lock_timestamp = case when t.verdict = 'take' then l.lock_timestamp else clock_timestamp() end,
        end_reason = case when t.verdict = 'take' then l.end_reason else 'its group was replaced' end
    from taken as t cross join own
    where l.key = t.key
    returning t.place
),
-- If two sessions create the same key, the advisory lock keeps one from waiting for the other's transaction, which
-- might hang.
wanted as materialized (
    select v.place, v.key, v.group_id from seen as v
    where v.verdict = 'create' and pg_try_advisory_xact_lock(1818577515, hashtext(v.key))
),
created as (
    insert into leadergroup.lock (key, group_id, session, protocol)
    select w.key, w.group_id, own.id, $2 from wanted as w cross join own
    order by w.key
    on conflict (key) do nothing
    returning key
)
select v.place,
       case
           when not exists (select from own) then 'dead'
           when c.place is not null or n.key is not null then 'ours'
           when v.verdict in ('take', 'revive', 'create') then 'busy'
           else v.verdict
       end as verdict,
       case when v.verdict = 'claimed' then v.session end as session,
       case when v.verdict in ('foreign', 'tombstone') then v.old_group end as group_id,
       case when v.verdict = 'newer' then v.protocol end as protocol
from seen as v
full join changed as c on c.place = v.place
full join created as n on n.key = v.key
