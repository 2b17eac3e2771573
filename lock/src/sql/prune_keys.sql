-- $1 after this key ('' to begin), $2 keys to look at, $3 ms. Removes keys of programs that nobody has held or waited for in
-- that time, with their history. The deletion raises the floor of all tokens to come (raise_token_floor), so a key that
-- comes back goes on above every token it ever had.
with page as materialized (
    select key from leadergroup.lock where key > $1 order by key limit $2
),
idle as materialized (
    select l.key from page as p join leadergroup.lock as l on l.key = p.key
    where l.group_id = leadergroup.programs() and l.holder_uid is null and l.session is null and not l.awaited
    and l.lock_timestamp < now() - $3 * interval '1 millisecond'
    -- At most as many rows as one statement may remove; the history of others is shortened first.
    and (select count(*) from (
        select from leadergroup.term as t where t.key = l.key limit 101
    ) as terms) <= 100
    limit 100
    for update of l skip locked
),
gone as (
    delete from leadergroup.lock as l using idle as i where l.key = i.key
    returning l.key
),
forgotten as (
    delete from leadergroup.term as t using idle as i where t.key = i.key
)
select (select max(key) from page) as last_key, (select count(*) from gone) as removed
