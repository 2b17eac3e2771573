-- $1 protocol, $2 group; one of each for each wish: $3 own sessions, $4 keys, $5 requests, $6 whether it is to wait. look.sql for
-- many wishes at once.
select a.place,
       case
           when l.session = a.session and l.grant_id = a.request then 'granted'
           when not a.waits then 'held'
           when exists (select from leadergroup.waiter as w where w.request = a.request and w.key = a.key) then 'waiting'
       end as verdict,
       l.token
from unnest($3::uuid[], $4::text[], $5::uuid[], $6::boolean[])
    with ordinality as a (session, key, request, waits, place)
join leadergroup.lock as l on l.key = a.key
join leadergroup.session as h on h.id = l.session and not h.dead
join leadergroup.session as s on s.id = a.session and not s.dead
where l.group_id = $2 and not l.tombstone and l.protocol <= $1
