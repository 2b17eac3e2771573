-- $1 start after this key ('' to begin), $2 keys to look at, $3 ms. Removes programs' keys that no one has held or
-- waited for in that time, with their history. The deletion raises the floor of all later tokens (raise_token_floor),
-- so a key that is created again continues above every token it ever had.
with page as materialized (
    select key, session from leadergroup.lock where key > $1 order by key limit $2
),
idle as materialized (
    select l.key from page as p
    -- If a row has changed since the snapshot, PostgreSQL checks its own columns again, but not those of other tables:
    -- so its session must be the same.
    join leadergroup.lock as l on l.key = p.key and l.session is not distinct from p.session
    where l.group_id = leadergroup.programs() and l.lock_timestamp < now() - $3 * interval '1 millisecond'
    and (
        l.holder_uid is null and l.session is null and not l.awaited
        -- Its holder ended without a release, so long ago that its session has been removed. A row with a lock delay
        -- stays: those who request the key measure the delay, and need the row for it.
        or l.session is not null and l.delay_ms = 0
           and not exists (select from leadergroup.session as s where s.id = l.session)
           and not exists (select from leadergroup.waiter as w where w.key = l.key)
    )
    -- At most as many terms as one statement may remove; longer histories are shortened first.
    and (select count(*) from (
        select from leadergroup.term as t where t.key = l.key limit 101
    ) as terms) <= 100
    limit 100
    for update of l skip locked
),
-- Free keys that count as awaited although the last waiter has died: they are idle at the next time. The function sees
-- the queue as it is once the row is locked.
unawaited as materialized (
    select leadergroup.note_whether_awaited(l.key) from page as p
    join leadergroup.lock as l on l.key = p.key
    where l.awaited and l.holder_uid is null and l.session is null
    and not exists (select from leadergroup.waiter as w where w.key = l.key)
    for no key update of l skip locked
),
gone as (
    delete from leadergroup.lock as l using idle as i where l.key = i.key
    returning l.key
),
forgotten as (
    delete from leadergroup.term as t using idle as i where t.key = i.key
)
select (select max(key) from page) as last_key, (select count(*) from gone) as removed,
       (select count(*) from unawaited) as unawaited
