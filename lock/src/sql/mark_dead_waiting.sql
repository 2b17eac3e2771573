-- As mark_dead.sql, but waits (bounded by lock_timeout) for sessions in the middle of a change instead of skipping them.
with observed as materialized (
    select id, beat from unnest($1::uuid[], $2::bigint[]) as o (id, beat)
),
victims as materialized (
    select s.id from leadergroup.session as s join observed as o on o.id = s.id
    where s.beat = o.beat and not s.dead
    order by s.id
    for update of s
),
marked as (
    update leadergroup.session as s set dead = true, dead_at = now()
    from victims as v where s.id = v.id
    returning s.id
)
select o.id,
       m.id is not null as marked,
       m.id is not null or s.id is null or s.dead as dead,
       coalesce(s.beat = o.beat, false) as unchanged
from observed as o
left join marked as m on m.id = o.id
left join leadergroup.session as s on s.id = o.id
