-- What holders publish of themselves, such as their address, for those who look them up.

-- In a table of its own, so that the rows of locks stay as short as they are. A row counts only while its token is the
-- one of the lock's present holder, so the end of a term need not change it.
create table leadergroup.published (
    key text collate "C" primary key,
    token bigint not null,
    -- The number of the publication within its term.
    change bigint not null,
    data text collate "C" not null,
    constraint data_of_at_most_4096_bytes check (octet_length(data) <= 4096)
);

-- Publishes data for as long as the session holds the key under this token, in place of those with a smaller number in
-- the same term. Returns whether it holds it. A term that ends at the same time makes the row count no more.
create function leadergroup.publish(session uuid, key text, token bigint, change bigint, data text) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    perform from leadergroup.lock as l
    join leadergroup.session as s on s.id = l.session and not s.dead
    where l.key = publish.key and l.token = publish.token and l.session = publish.session
    and l.holder_uid is not null and l.group_id = leadergroup.programs();
    if not found then
        return false;
    end if;
    insert into leadergroup.published as p (key, token, change, data)
    values (publish.key, publish.token, publish.change, publish.data)
    on conflict on constraint published_pkey
    do update set token = excluded.token, change = excluded.change, data = excluded.data
    -- A statement that comes late must not hide what was published after it, by this holder or a later one.
    where (p.token, p.change) <= (excluded.token, excluded.change);
    return true;
end
$$;

comment on function leadergroup.publish(uuid, text, bigint, bigint, text) is
    'Publishes data of the holder. It is shown for as long as the session holds the key under this token.';

-- SECURITY DEFINER: a program of an earlier version, whose role may have no rights on this table, prunes keys too.
create function leadergroup.forget_published() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    delete from leadergroup.published as p where p.key = old.key;
    return null;
end
$$;

create trigger forget_published after delete on leadergroup.lock
for each row execute function leadergroup.forget_published();
alter table leadergroup.lock enable always trigger forget_published;

-- Roles that may use the queue may use this table in the same way.
do $$
declare
    held record;
begin
    for held in
        select a.privilege_type, case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role
        from pg_class as c cross join aclexplode(c.relacl) as a
        where c.oid = 'leadergroup.waiter'::regclass
        and a.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    loop
        execute format('grant %s on leadergroup.published to %s', held.privilege_type, held.role);
    end loop;
end
$$;
