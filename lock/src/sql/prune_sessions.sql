-- $1 ms, $2 sessions to remove at most. Long dead sessions. A row that still names one is as free as if it named a dead one,
-- but for a lock delay: a session that is gone counts as ended uncleanly.
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
