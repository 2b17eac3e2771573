-- $1 session.
select key, token, holder_uid from leadergroup.lock where session = $1 order by key
