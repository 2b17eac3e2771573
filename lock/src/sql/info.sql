-- Locks, as shown to people. The caller appends the condition.
select l.key, l.group_id, l.token, l.holder_uid, l.holder_namespace, l.holder_name,
       l.confirmed_token > 0 and l.confirmed_token = l.token as confirmed, l.tombstone,
       (extract(epoch from l.lock_timestamp) * 1000000)::bigint as lock_timestamp_us,
       s.id as session, s.name as session_name, s.dead as session_dead,
       (extract(epoch from s.seen) * 1000000)::bigint as session_seen_us, s.ttl_ms as session_ttl_ms,
       (extract(epoch from now() - s.seen) * 1000)::bigint as session_silent_ms,
       l.group_id = leadergroup.programs() and coalesce(s.dead, true) as abandoned, p.data
from leadergroup.lock as l
left join leadergroup.session as s on s.id = l.session
left join leadergroup.published as p on p.key = l.key and p.token = l.token and l.holder_uid is not null
