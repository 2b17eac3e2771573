-- $1 after this key ('' to begin), $2 limit. A session that is not in its table any more is as dead as a marked one.
select l.key, l.group_id
from leadergroup.lock as l
left join leadergroup.session as s on s.id = l.session
where l.key > $1 and not l.tombstone and (s.id is null or s.dead)
order by l.key
limit $2
