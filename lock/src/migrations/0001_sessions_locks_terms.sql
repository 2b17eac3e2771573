-- The tables of the lock. Every statement of the program names the schema; nothing depends on search_path.

-- The identity of the database's present history. The timeline is taken from the position being written: it is right
-- from the first moment after a promotion, and reading it needs no privilege. The system's identifier is read from a file,
-- and stays the same for as long as a server runs: the program notes it in a setting of each direct connection, once.
create function leadergroup.present_system() returns bigint
language sql volatile
return coalesce(
    case when pg_catalog.current_setting('leadergroup.direct', true) = 'on' then
        nullif(pg_catalog.current_setting('leadergroup.system_identifier', true), '')::bigint
    end,
    (pg_catalog.pg_control_system()).system_identifier
);

create function leadergroup.present_timeline() returns bigint
language sql volatile
return ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint;

create view leadergroup.present as
select leadergroup.present_system() as system_identifier, leadergroup.present_timeline() as timeline;

-- The history that the tokens were granted in. `era` grows whenever the one above is found to be another: commits may
-- have been lost, so tokens jump. One row.
create table leadergroup.meta (
    only_row boolean primary key default true check (only_row),
    system_identifier bigint not null,
    timeline bigint not null,
    era bigint not null default 0
);
insert into leadergroup.meta (system_identifier, timeline) select system_identifier, timeline from leadergroup.present;

-- One running process. `beat` is what others watch; `seen` and `dead_at` are for people and for cleaning up. The free
-- space keeps each heartbeat a heap-only update.
create table leadergroup.session (
    id uuid primary key,
    name text not null,
    beat bigint not null default 1,
    ttl_ms bigint not null check (ttl_ms > 0),
    dead boolean not null default false,
    registered_at timestamptz not null default now(),
    seen timestamptz not null default now(),
    dead_at timestamptz
) with (fillfactor = 20);

-- One key. No index but the primary key, so that every change of a row is a heap-only update; a page has room for a second
-- version of each of its rows, even though they get longer with their first owner. Who may still act as the holder is in
-- the terms from `confirmed_token` on.
create table leadergroup.lock (
    key text primary key,
    group_id text not null,
    session uuid,
    token bigint not null default 0,
    era bigint not null default 0,
    grant_id uuid,
    owner_uid text,
    owner_namespace text,
    owner_name text,
    confirmed_token bigint not null default 0,
    tombstone boolean not null default false,
    protocol integer not null,
    lock_timestamp timestamptz not null default now(),
    -- One, because each of them costs something at every change.
    constraint sound check (
        (owner_uid is null) = (owner_namespace is null) and (owner_uid is null) = (owner_name is null)
        and (not tombstone or owner_uid is null)
    )
) with (fillfactor = 25);

-- The history: one row for each token ever granted, until it is pruned. Each row is changed once or twice soon after it
-- was written, when its page has room for that.
create table leadergroup.term (
    key text not null,
    token bigint not null,
    grant_id uuid not null,
    group_id text not null,
    session uuid not null,
    owner_uid text not null,
    owner_namespace text not null,
    owner_name text not null,
    reason text not null,
    -- Not when the transaction began: it may have waited for the term before to end.
    granted_at timestamptz not null default clock_timestamp(),
    confirmed_at timestamptz,
    ended_at timestamptz,
    end_reason text,
    primary key (key, token)
) with (fillfactor = 50);
