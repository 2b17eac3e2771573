-- $1 key, $2 limit. The waiters, the next one first, without those of dead sessions.
select w.holder_uid, w.holder_namespace, w.holder_name, w.reason, w.session,
       (extract(epoch from w.asked_at) * 1000000)::bigint as asked_at_us
from leadergroup.waiter as w join leadergroup.session as s on s.id = w.session
where w.key = $1 and not s.dead
order by w.id
limit $2
