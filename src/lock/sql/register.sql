-- $1 id, $2 name, $3 ttl in ms. The caller makes the id, so repeating a registration whose answer was lost is harmless.
insert into leadergroup.session (id, name, ttl_ms) values ($1, $2, $3)
on conflict (id) do nothing
