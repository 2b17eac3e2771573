-- $1 session.
select key, token from leadergroup.lock where session = $1 order by key
