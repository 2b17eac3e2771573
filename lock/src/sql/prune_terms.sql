-- $1 after this key ('' to begin), $2 keys at a time, $3 terms to keep. Never removes the last confirmed term nor a later
-- one. Goes from key to key along the index.
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
gone as (
    delete from leadergroup.term as t using cut as c
    where t.key = c.key and t.token < c.oldest_kept
    returning 1
)
select (select max(key) from keys) as last_key, (select count(*) from gone) as removed
