-- $1 ms, $2 sessions to remove at most. Removes sessions that died long ago. A lock row that still names one is as free
-- as if it named a dead one, except for a lock delay: a session without a row counts as ended uncleanly.
with gone as (
    delete from leadergroup.session as s
    where s.id in (
        select d.id from leadergroup.session as d
        where d.dead and d.dead_at < now() - $1 * interval '1 millisecond'
        order by d.id
        limit $2
        for update skip locked
    )
    returning s.id
)
select count(*) as removed from gone
