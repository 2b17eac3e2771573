-- $1 key, $2 protocol, $3 group, $4 the token that the row has (NULL: there is no row), $5 floor, $6 reason, $7 force.
--
-- Gives a key to another group. The row keeps its token or gets a larger one, so that the next token is larger than all
-- before. A session that is dead in the statement's snapshot stays dead, so it cannot use the key any more. Open fenced
-- transactions do not delay it: the next grant waits for them.
with seen as materialized (
    select a.key, l.group_id, l.session, l.token, l.tombstone, l.protocol, l.holder_uid,
           case
               when l.key is null then case when $4::bigint is null then 'create' else 'missing' end
               when l.protocol > $2 then 'newer'
               when l.group_id = leadergroup.programs() then 'foreign'
               when l.token is distinct from $4 then 'changed'
               -- Nobody has it yet. Its owner finds another token at its first grant, and reads the row again.
               when l.group_id = $3 and l.holder_uid is null and not l.tombstone then 'raise'
               when not s.dead and not $7 then 'unclaimed'
               else 'take'
           end as verdict
    from (select $1::text as key) as a
    left join leadergroup.lock as l on l.key = a.key
    left join leadergroup.session as s on s.id = l.session
),
taken as materialized (
    select v.verdict, l.key, l.session
    from seen as v
    join leadergroup.lock as l
        on l.key = v.key and l.group_id = v.group_id and l.session is not distinct from v.session
        and l.token = v.token and l.tombstone = v.tombstone and l.protocol = v.protocol
        and l.holder_uid is not distinct from v.holder_uid
    where v.verdict in ('raise', 'take')
    for no key update of l skip locked
),
changed as (
    update leadergroup.lock as l
    set group_id = $3, token = greatest(l.token, $5::bigint), tombstone = false, grant_id = null,
        session = case when t.verdict = 'raise' then l.session end,
        holder_uid = null, holder_namespace = null, holder_name = null,
        lock_timestamp = clock_timestamp(), end_reason = $6
    from taken as t where l.key = t.key
    returning l.token
),
-- The old owner learns it with its next heartbeat, if it is alive after all.
revoked as (
    update leadergroup.session as s set revoked = s.revoked + 1
    from taken as t where s.id = t.session and t.verdict = 'take' and not s.dead
),
created as (
    insert into leadergroup.lock (key, group_id, token, protocol)
    select v.key, $3, $5, $2 from seen as v
    where v.verdict = 'create' and pg_try_advisory_xact_lock(1818577515, hashtext(v.key))
    on conflict (key) do nothing
    returning token
)
select case
           when c.token is not null or n.token is not null then 'done'
           when v.verdict in ('raise', 'take', 'create') then 'busy'
           else v.verdict
       end as verdict,
       coalesce(c.token, n.token) as token, v.session, v.group_id, v.protocol
from seen as v
left join changed as c on true
left join created as n on true
