-- $1 own session, $2 whether in order. Ending the session frees the charge of all its locks at once: a row whose session is dead may be taken
-- over. No lock row is written, however many there are.
with ended as (
    update leadergroup.session set dead = true, dead_at = now(), closed = $2
    where id = $1 and not dead
    returning id
)
select count(l.key) as freed from ended as e join leadergroup.lock as l on l.session = e.id
