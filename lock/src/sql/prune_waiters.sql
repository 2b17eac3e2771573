-- $1 rows to remove at most. Removes places in queues whose session is dead or removed. Most are removed in passing;
-- this is for keys that are no longer requested. Deletes in the same order as an acquisition, so that the two cannot
-- deadlock; a locked row is left for the next time.
with forgotten as materialized (
    select w.key, w.id from leadergroup.waiter as w
    where not exists (select from leadergroup.session as s where s.id = w.session and not s.dead)
    order by w.key, w.id
    limit $1
    for update of w skip locked
),
gone as (
    delete from leadergroup.waiter as w using forgotten as f where w.key = f.key and w.id = f.id
    returning 1
)
select count(*) as removed from gone
