-- $1 start after this key ('' to begin), $2 keys to look at, $3 terms to keep of each, $4 rows to remove at most. Never
-- removes the last confirmed term or a later one. Goes from key to key along the index; if `removed` is $4, there may
-- be more of the same keys.
with keys as materialized (
    select key, confirmed_token from leadergroup.lock where key > $1 order by key limit $2
),
cut as materialized (
    select k.key,
           least(
               k.confirmed_token,
               coalesce((select t.token from leadergroup.term as t where t.key = k.key
                         order by t.token desc offset $3 - 1 limit 1), 0)
           ) as oldest_kept
    from keys as k
),
old as materialized (
    select t.key, t.token
    from cut as c cross join lateral (
        select t.key, t.token from leadergroup.term as t
        where t.key = c.key and t.token < c.oldest_kept order by t.token limit $4
    ) as t
    limit $4
),
gone as (
    delete from leadergroup.term as t using old as o where t.key = o.key and t.token = o.token
    returning 1
)
select (select max(key) from keys) as last_key, (select count(*) from gone) as removed
