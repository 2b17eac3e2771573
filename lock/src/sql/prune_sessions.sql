-- $1 ms, $2 at most. Sessions long dead of which no lock row remembers the charge.
with gone as (
    delete from leadergroup.session as s
    where s.id in (
        select d.id from leadergroup.session as d
        where d.dead and d.dead_at < now() - $1 * interval '1 millisecond'
        and not exists (select from leadergroup.lock as l where l.session = d.id)
        limit $2
    )
    returning s.id
)
select count(*) as removed from gone
