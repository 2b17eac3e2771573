-- $1 start after this key ('' to begin), $2 limit. Keys that no living session has claimed. A session without a row
-- counts as dead.
select l.key, l.group_id
from leadergroup.lock as l
left join leadergroup.session as s on s.id = l.session
where l.key > $1 and not l.tombstone and (s.id is null or s.dead)
order by l.key
limit $2
