-- $1 own session, $2 protocol, $3 keys, $4 groups, $5 floors. Marks keys whose group was deleted; the row stays with
-- its token. A key that no living session has claimed is treated like the caller's own: the deletion of a group must
-- not wait for a claim. A row that was lost is created again, so that the next user of the key continues above the
-- floor. Open fenced transactions do not delay it: the next grant waits for them.
with own as materialized (
    select s.id from leadergroup.session as s where s.id = $1 and not s.dead
    for key share
),
asked as materialized (
    select * from unnest($3::text[], $4::text[], $5::bigint[])
        with ordinality as a (key, group_id, floor, place)
),
seen as materialized (
    select a.place, a.key, a.group_id, a.floor, l.session, l.protocol, l.group_id as old_group,
           case
               when l.key is null then 'create'
               when l.protocol > $2 then 'newer'
               when l.group_id <> a.group_id then 'foreign'
               when l.tombstone and l.token >= a.floor then 'done'
               when l.session <> $1 and not s.dead then 'unclaimed'
               else 'bury'
           end as verdict
    from asked as a
    left join leadergroup.lock as l on l.key = a.key
    left join leadergroup.session as s on s.id = l.session
),
taken as materialized (
    select v.place, v.floor, l.key
    from seen as v
    join leadergroup.lock as l
        on l.key = v.key and l.group_id = v.group_id and l.session is not distinct from v.session
        and l.protocol = v.protocol
    where v.verdict = 'bury'
    for no key update of l skip locked
),
judged as materialized (
    select t.* from taken as t cross join own
),
changed as (
    update leadergroup.lock as l
    set tombstone = true, session = null, holder_uid = null, holder_namespace = null, holder_name = null,
        token = greatest(l.token, j.floor), grant_id = null,
        lock_timestamp = clock_timestamp(), end_reason = 'group deleted'
    from judged as j where l.key = j.key
    returning j.place
),
wanted as materialized (
    select v.place, v.key, v.group_id, v.floor from seen as v
    where v.verdict = 'create' and pg_try_advisory_xact_lock(1818577515, hashtext(v.key))
),
created as (
    insert into leadergroup.lock (key, group_id, token, tombstone, protocol)
    select w.key, w.group_id, w.floor, true, $2 from wanted as w cross join own
    order by w.key
    on conflict (key) do nothing
    returning key
)
select v.place,
       case
           when not exists (select from own) then 'dead'
           when c.place is not null or n.key is not null then 'done'
           when v.verdict in ('bury', 'create') then 'busy'
           else v.verdict
       end as verdict,
       v.session, v.old_group as group_id, v.protocol
from seen as v
full join changed as c on c.place = v.place -- FULL as in grant.sql
full join created as n on n.key = v.key
