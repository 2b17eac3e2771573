-- leadergroup.fence_seen(key, token): a fence for data that is kept in another database than the lock.
--
-- Install it in the database that holds the data, as the role that will own it:   psql -d DATABASE -f fence_seen.sql
-- and let the application use it:                            grant usage on schema leadergroup to APPLICATION_ROLE; It
-- may be run again.
--
-- Call the function first in a transaction, with the token of the caller's term. It raises LG001 if a transaction with
-- a larger token has been committed. The first transaction with a new token waits until those with smaller tokens have
-- ended; after `leadergroup.fence_patience` ms (1000 if not set) it terminates their connections, if the role may do so
-- (the same role always may) and unless `leadergroup.fence_terminate` is off. Then it waits for as long as lock_timeout
-- and statement_timeout allow.

begin;

create schema if not exists leadergroup;

-- For each key the largest token of all committed transactions. A mark with a role can be raised by this role and its
-- members only; without one, by every role that may use the schema. Keys are compared byte by byte: an index in the
-- database's own collation can miss rows after an upgrade of the library that sorts.
create table if not exists leadergroup.fence_mark (
    key text collate "C" primary key,
    token bigint not null,
    role name
) with (fillfactor = 50);

-- A table that an earlier version created.
do $$
begin
    if exists (
        select from pg_attribute as a
        where a.attrelid = 'leadergroup.fence_mark'::regclass and a.attname = 'key'
        and a.attcollation <> 'pg_catalog."C"'::regcollation
    ) then
        alter table leadergroup.fence_mark alter column key type text collate "C";
    end if;
end
$$;
alter table leadergroup.fence_mark add column if not exists role name;

create or replace function leadergroup.fence_mark_id(key text) returns bigint
language sql immutable strict parallel safe
return pg_catalog.hashtextextended(key, 3150411335781076928);

-- Reads the mark as of the snapshot, or, if `locked`, locks it against changes; an outdated snapshot is then an error
-- (40001).
create or replace function leadergroup.fence_mark_read(key text, locked boolean) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    found_token bigint;
begin
    if locked then
        select m.token into found_token from leadergroup.fence_mark as m where m.key = fence_mark_read.key for share;
    else
        select m.token into found_token from leadergroup.fence_mark as m where m.key = fence_mark_read.key;
    end if;
    return found_token;
end
$$;

-- Raises the mark, and returns its new value. The caller is the role that the session has set, or has logged in as:
-- current_user is the owner of this function.
create or replace function leadergroup.fence_mark_raise(key text, token bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    found_token bigint;
    caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
begin
    insert into leadergroup.fence_mark as m (key, token) values (fence_mark_raise.key, fence_mark_raise.token)
    on conflict on constraint fence_mark_pkey do update set token = greatest(m.token, excluded.token)
    where m.role is null or pg_has_role(caller, m.role, 'member')
    returning m.token into found_token;
    if found_token is null then
        raise exception 'leadergroup.fence_seen: role "%" may not raise the mark of key "%"', caller, key
            using errcode = 'insufficient_privilege',
                  hint = 'The column role of leadergroup.fence_mark names the role whose members may.';
    end if;
    return found_token;
end
$$;

-- Not SECURITY DEFINER: it may terminate only what the application's own role may terminate.
create or replace function leadergroup.fence_seen(key text, token bigint) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    id bigint;
    seen bigint;
    before constant text := current_setting('lock_timeout');
    patience text := coalesce(nullif(current_setting('leadergroup.fence_patience', true), ''), '1000');
    may_end boolean := coalesce(nullif(current_setting('leadergroup.fence_terminate', true), ''), 'on')::boolean;
    open boolean := false;
begin
    if fence_seen.key is null or fence_seen.token is null then
        raise exception 'leadergroup.fence_seen: key and token must not be null'
            using errcode = 'null_value_not_allowed';
    end if;
    id := leadergroup.fence_mark_id(fence_seen.key);
    seen := leadergroup.fence_mark_read(fence_seen.key, false);
    if seen >= fence_seen.token then
        perform pg_advisory_xact_lock_shared(id);
        -- Read again, now that no one can raise it. If the snapshot is older than the lock, only locking the row shows
        -- the latest value.
        seen := leadergroup.fence_mark_read(
            fence_seen.key, current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
        );
    else
        -- Takes the exclusive lock directly: of two transactions that first shared it, neither could get it
        -- exclusively.
        begin
            perform set_config('lock_timeout', patience, true);
            perform pg_advisory_xact_lock(id);
            perform set_config('lock_timeout', before, true);
            open := true;
        exception when lock_not_available then
            null;
        end;
        if not open then
            begin
                perform pg_terminate_backend(l.pid)
                from pg_locks as l
                where may_end and l.locktype = 'advisory' and l.mode = 'ShareLock' and l.granted and l.objsubid = 1
                and l.database = (select d.oid from pg_database as d where d.datname = current_database())
                and (l.classid::bigint << 32 | l.objid::bigint) = id
                and l.pid <> pg_backend_pid();
            exception when insufficient_privilege then
                raise warning 'leadergroup.fence_seen: a transaction with an older token of key "%" is under way, and '
                    'this role may not end it', fence_seen.key;
            end;
            perform pg_advisory_xact_lock(id);
        end if;
        seen := leadergroup.fence_mark_raise(fence_seen.key, fence_seen.token);
    end if;
    if seen is distinct from fence_seen.token then
        raise exception 'leadergroup.fence_seen: token % of key "%" is outdated', fence_seen.token, fence_seen.key
            using errcode = 'LG001',
                  detail = format('A transaction with token %s was committed.', seen),
                  hint = 'Another holder is active: roll back, and do not try again with this token.';
    end if;
end
$$;

comment on function leadergroup.fence_seen(text, bigint) is
    'Call it first in a transaction: raises LG001 if a larger token of the key was seen, and keeps transactions '
    'with larger tokens waiting until this transaction has ended.';

commit;
