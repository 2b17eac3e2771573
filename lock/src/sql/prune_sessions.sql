-- $1 ms, $2 sessions to remove at most. Long dead sessions. A row that still names one is as free as if it named a dead one,
-- but for a lock delay: a session that is gone counts as ended uncleanly. So the keys of those that were closed in order
-- lose their delay first.
with old as materialized (
    select d.id, d.closed from leadergroup.session as d
    where d.dead and d.dead_at < now() - $1 * interval '1 millisecond'
    order by d.id
    limit $2
    for update skip locked
),
undelayed as (
    update leadergroup.lock as l set delay_ms = 0
    from old as o where l.session = o.id and o.closed and l.delay_ms > 0
),
gone as (
    delete from leadergroup.session as s using old as o where s.id = o.id
    returning s.id
)
select count(*) as removed from gone
