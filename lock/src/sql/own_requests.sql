-- $1 own session, $2 group of keys that programs hold, $3 requests that are known, $4 at most. What the session holds or
-- waits for by other requests. Reads whole tables: an index would cost more at every change than it saves at this.
select o.key, o.request
from (
    select l.key, l.grant_id as request from leadergroup.lock as l
    where l.session = $1 and l.group_id = $2 and l.owner_uid is not null and l.grant_id is not null
    union
    select w.key, w.request from leadergroup.waiter as w where w.session = $1
) as o
where o.request <> all ($3)
limit $4
