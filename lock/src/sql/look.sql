-- $1 own session, $2 protocol, $3 key, $4 group, $5 request, $6 whether it is to wait.
--
-- What becomes of a wish for a key that somebody holds, without changing anything. No row: the key may be free, or something is
-- the matter with it; leadergroup.acquire finds out.
select 1::bigint as place,
       case
           when l.session = $1 and l.grant_id = $5 then 'granted'
           when not $6 then 'held'
           when exists (select from leadergroup.waiter as w where w.request = $5 and w.key = $3) then 'waiting'
       end as verdict,
       l.token
from leadergroup.lock as l
join leadergroup.session as h on h.id = l.session and not h.dead
where l.key = $3 and l.group_id = $4 and not l.tombstone and l.protocol <= $2
and exists (select from leadergroup.session as s where s.id = $1 and not s.dead)
