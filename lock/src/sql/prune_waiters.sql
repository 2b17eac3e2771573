-- $1 rows to remove at most. Places in queues whose session is gone or dead. Most are removed in passing; these are for keys
-- that nobody asks for any more. In the order in which an acquisition deletes them, so that the two never wait for each
-- other in a circle; a row that is locked is left for the next time.
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
