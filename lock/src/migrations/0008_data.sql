-- What holders publish of themselves, such as their address, for those who look them up.

-- In a table of its own, so that the rows of locks stay as short as they are. A row counts only while its token is the
-- one of the lock's present holder, so the end of a term need not change it.
create table leadergroup.published (
    key text collate "C" primary key,
    token bigint not null,
    data text collate "C" not null,
    constraint data_of_at_most_4096_bytes check (octet_length(data) <= 4096)
);

-- Publishes data for as long as the session holds the key under this token, in place of what it published before.
-- Returns whether it holds it. A term that ends at the same time makes the row count no more.
create function leadergroup.publish(session uuid, key text, token bigint, data text) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    insert into leadergroup.published as p (key, token, data)
    select l.key, l.token, publish.data
    from leadergroup.lock as l
    join leadergroup.session as s on s.id = l.session and not s.dead
    where l.key = publish.key and l.token = publish.token and l.session = publish.session
    and l.holder_uid is not null and l.group_id = leadergroup.programs()
    on conflict (key) do update set token = excluded.token, data = excluded.data
    -- A statement that comes late must not hide what a later holder has published.
    where p.token <= excluded.token;
    return found;
end
$$;

comment on function leadergroup.publish(uuid, text, bigint, text) is
    'Publishes data of the holder. It is shown for as long as the session holds the key under this token.';

create function leadergroup.forget_published() returns trigger
language plpgsql
as $$
begin
    delete from leadergroup.published as p where p.key = old.key;
    return null;
end
$$;

create trigger forget_published after delete on leadergroup.lock
for each row execute function leadergroup.forget_published();
