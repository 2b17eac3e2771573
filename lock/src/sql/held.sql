-- $1 keys. Those that sessions hold, and the era of the server that answers. At least one row.
select m.era_id, l.key, l.token, l.session
from leadergroup.meta as m
left join leadergroup.lock as l on l.key = any($1) and l.session is not null and l.holder_uid is not null
