-- Counts of everything. Reads whole tables.
select (select count(*) from leadergroup.session where not dead) as living_sessions,
       (select count(*) from leadergroup.lock where not tombstone) as locks,
       (select count(*) from leadergroup.lock where holder_uid is not null) as held,
       (select count(*) from leadergroup.waiter as w join leadergroup.session as s on s.id = w.session
        where not s.dead) as waiting
