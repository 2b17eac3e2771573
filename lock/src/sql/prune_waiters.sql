-- $1 at most. Waiters whose session is gone or dead: it never lives again. Most are removed in passing; these are the ones for
-- keys that nobody asks for any more.
with forgotten as (
    select w.key, w.id from leadergroup.waiter as w
    where not exists (select from leadergroup.session as s where s.id = w.session and not s.dead)
    limit $1
),
gone as (
    delete from leadergroup.waiter as w using forgotten as f where w.key = f.key and w.id = f.id
    returning 1
)
select count(*) as removed from gone
