-- Eras: in which past of the database a token was granted. The statements in these files qualify every name that is not
-- PostgreSQL's own with its schema; nothing depends on search_path.

-- The identity of the database's past: the system identifier and the timeline that is being written. The timeline is
-- taken from the write position, which is right from the first moment after a promotion. Where the role may not read
-- the system identifier, as on some managed servers, the timeline alone identifies it. On Amazon Aurora,
-- pg_current_wal_lsn fails unless wal_level is logical. Its instances share their storage, so a failover loses no
-- commits, and the system identifier suffices. SECURITY DEFINER, so that all roles agree.
create function leadergroup.read_history() returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    system text := 'unknown';
    timeline text := 'unknown';
begin
    begin
        system := (pg_control_system()).system_identifier;
    exception when insufficient_privilege then
        null;
    end;
    begin
        timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    exception when object_not_in_prerequisite_state then
        -- A standby fails in the same way, and must not be mistaken for Aurora. Of a server that tells neither, nothing
        -- is known.
        if pg_is_in_recovery() or system = 'unknown' then
            raise;
        end if;
    end;
    return system || '/' || timeline;
end
$$;

comment on function leadergroup.read_history() is
    'Identifies the past of this database: "<system identifier>/<timeline>".';

-- The same, cached for this connection in the setting leadergroup.history. The past of a server that accepts writes
-- changes only with a restart, so a connection that was opened while the server accepted writes may read it once.
create function leadergroup.history() returns text
language sql volatile
return coalesce(
    nullif(pg_catalog.current_setting('leadergroup.history', true), ''),
    leadergroup.read_history()
);

-- One row. An era begins whenever the database's past differs from the recorded one (after a failover or a restored
-- backup): commits may have been lost, so tokens jump. Two servers that were promoted from the same past begin eras of
-- their own: the ids differ, and each server raises the number by a random amount of 1 to 1000. Tokens jump by a
-- million for each unit of the number, so the tokens of the two servers differ as well, except one time in a thousand,
-- when both draw the same amount.
create table leadergroup.meta (
    only_row boolean primary key default true check (only_row),
    history text collate "C" not null,
    era bigint not null default 0,
    era_id uuid not null default gen_random_uuid(),
    -- A program may still rely on a grant of the previous era that this database has lost. While that is possible, no
    -- key of a program gets a new holder.
    quarantine boolean not null default false,
    -- New rows begin above this token. It is at least as large as the token of every deleted row. It grows with the
    -- era, because rows that began above it may have been lost.
    token_floor bigint not null default 0,
    pruned_at timestamptz not null default '-infinity'
);
insert into leadergroup.meta (history) values (leadergroup.read_history());

-- Returns the present era. Begins a new one if the database's past has changed since the last call.
create function leadergroup.present_era(out era bigint, out era_id uuid, out quarantine boolean)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    present constant text := leadergroup.history();
    step constant bigint := 1 + floor(random() * 1000)::bigint;
begin
    update leadergroup.meta
    set history = present, era = era + step, era_id = gen_random_uuid(), quarantine = true,
        token_floor = token_floor + sign(token_floor)::bigint * step * 1000000
    where history <> present;
    if found then
        -- All heartbeats wait for this row now, so this commit must not wait for a synchronous standby. If a failover
        -- loses it, the history changes again, and another era begins anyway. No key of a program gets a new holder in
        -- this transaction.
        perform set_config('synchronous_commit', 'local', true);
    end if;
    select m.era, m.era_id, m.quarantine into present_era.era, present_era.era_id, present_era.quarantine
    from leadergroup.meta as m;
end
$$;

-- Begins a new era by hand. For database files that were restored as they were: nothing in them shows that commits were
-- lost.
create function leadergroup.begin_era(token_floor bigint default 0) returns bigint
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    -- A floor is never lowered again. Above this one there is little room for later tokens: JSON readers distinguish
    -- integers up to four times as much, and the operator ignores stamps of more than twice as much.
    most constant bigint := 1::bigint << 51;
    step constant bigint := 1 + floor(random() * 1000)::bigint;
    begun bigint;
begin
    if begin_era.token_floor not between 0 and most then
        raise exception 'leadergroup.begin_era: the floor % is not between 0 and %', begin_era.token_floor, most
            using errcode = 'invalid_parameter_value', hint = 'Name a number above all tokens that a store has seen.';
    end if;
    update leadergroup.meta as m
    set era = m.era + step, era_id = gen_random_uuid(), quarantine = true,
        token_floor = greatest(m.token_floor + sign(m.token_floor)::bigint * step * 1000000, begin_era.token_floor)
    returning m.era into begun;
    return begun;
end
$$;

-- The same for a program that has proof that commits were lost in this era although the history is the same: its own
-- `beat` is lower than a heartbeat has shown it. Of several programs that have noticed it, one begins the new era.
create function leadergroup.commits_were_lost(era_id uuid) returns boolean
language plpgsql volatile
as $$
begin
    perform from leadergroup.meta as m where m.era_id = commits_were_lost.era_id for update;
    if not found then
        return false;
    end if;
    -- As in present_era: this commit must not wait for a standby, which after old files were put back may be ahead of
    -- this server, and unable to follow it.
    perform set_config('synchronous_commit', 'local', true);
    perform leadergroup.begin_era();
    return true;
end
$$;

comment on function leadergroup.commits_were_lost(uuid) is
    'Begins a new era if this one is the present one. For a program whose counter in `session` has gone back.';

comment on function leadergroup.begin_era(bigint) is
    'Makes all later tokens larger than any that may have been granted and lost. For a database whose files were '
    'restored as they were; a failover needs no such call.';

-- Ends the quarantine of this era. False if it has ended already, or if another era has begun.
create function leadergroup.end_quarantine(era_id uuid) returns boolean
language plpgsql volatile
as $$
begin
    update leadergroup.meta as m set quarantine = false
    where m.era_id = end_quarantine.era_id and m.quarantine and m.history = leadergroup.history();
    return found;
end
$$;
