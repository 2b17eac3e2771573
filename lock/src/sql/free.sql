-- $1 own session, $2 protocol, $3 key, $4 group, $5 token, $6 reason, $7 id, $8 whether a crash may take it back. The short way of
-- leadergroup.release, for a key that nobody waits for. No row: the long way finds out why. See take.sql for what it rests on.
--
-- If a crash may take it back the commit does not wait for the disk. Whoever gets the key next waits for it, and what was written
-- before is on the disk then, too. A release that is lost leaves the key with a session that is not at work under it any more;
-- its program, which has asked for that, finds it out and gives the key up again, or ends, and the session with it. It finds it
-- out by its connections, so not through a pooler.
update leadergroup.lock as l
set owner_uid = null, owner_namespace = null, owner_name = null, session = null, grant_id = null,
    lock_timestamp = clock_timestamp(), end_reason = $6, end_id = $7
where l.key = (
    select h.key
    from leadergroup.lock as h
    where h.key = $3 and h.session = $1 and h.token = $5 and not h.awaited and h.owner_uid is not null
    and h.group_id = $4 and not h.tombstone and h.protocol <= $2
    and exists (select from leadergroup.session as s where s.id = $1 and not s.dead)
    for no key update of h skip locked
)
returning 1::bigint as place, set_config('synchronous_commit', case
    when $8 and current_setting('leadergroup.direct', true) = 'on' then 'off'
    else current_setting('synchronous_commit')
end, true)
