-- $1 session.
select key, token, owner_uid from leadergroup.lock where session = $1 order by key
