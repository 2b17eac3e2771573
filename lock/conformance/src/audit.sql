-- A record of everything that clients do, kept in the database itself. The functions of the protocol move into another
-- schema under their own names, and functions with the same arguments and answers take their places: these note each
-- call, and can forge an answer. Triggers note each change of a row.

create schema conform;
create schema leadergroup_real;

create table conform.event (
    id bigint generated always as identity primary key,
    -- Milliseconds on the clock that does not stop and cannot be set: at the entry of a call.
    at_ms bigint not null,
    tx bigint not null,
    who text not null,
    what text not null,
    session uuid,
    key text,
    token bigint,
    grant_id uuid,
    beat bigint,
    verdict text,
    sync text not null,
    time_limit text not null
);

-- Answers to forge, by the name of the function.
create table conform.forged (what text primary key);

-- CLOCK_BOOTTIME in hundredths of a second, whatever the server's time of day.
create function conform.uptime() returns bigint
language sql volatile security definer
return (pg_catalog.split_part(pg_catalog.pg_read_file('/proc/uptime'), ' ', 1)::numeric * 1000)::bigint;

create function conform.note(
    at_ms bigint, sync text, what text, session uuid, key text default null, token bigint default null,
    grant_id uuid default null, beat bigint default null, verdict text default null
) returns void
language plpgsql volatile security definer
as $$
begin
    insert into conform.event (at_ms, tx, who, what, session, key, token, grant_id, beat, verdict, sync, time_limit)
    values (note.at_ms, txid_current(), session_user, note.what, note.session, note.key, note.token, note.grant_id,
            note.beat, note.verdict, note.sync, current_setting('statement_timeout'));
end
$$;

create function conform.is_forged(what text) returns boolean
language sql volatile security definer
return exists (select from conform.forged as f where f.what = is_forged.what);

alter function leadergroup.register(uuid, text, bigint, text, text) set schema leadergroup_real;
alter function leadergroup.beat(uuid, uuid[]) set schema leadergroup_real;
alter function leadergroup.mark_dead(uuid[], bigint[], uuid) set schema leadergroup_real;
alter function leadergroup.acquire(uuid, jsonb, integer, integer) set schema leadergroup_real;
alter function leadergroup.release(uuid, jsonb) set schema leadergroup_real;
alter function leadergroup.give_up(uuid, text, uuid) set schema leadergroup_real;
alter function leadergroup.wake(uuid, uuid) set schema leadergroup_real;
alter function leadergroup.close(uuid, boolean) set schema leadergroup_real;
alter function leadergroup.end_quarantine(uuid) set schema leadergroup_real;
alter function leadergroup.commits_were_lost(uuid) set schema leadergroup_real;

create function leadergroup.register(
    id uuid, name text, ttl_ms bigint, peers text default null, place text default null,
    out era_id uuid, out quarantine boolean
)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
begin
    select r.era_id, r.quarantine into era_id, quarantine
    from leadergroup_real.register(id, name, ttl_ms, peers, place) as r;
    perform conform.note(at_ms, sync, 'register', id, beat => ttl_ms);
end
$$;

create function leadergroup.beat(session uuid, watch uuid[] default '{}')
returns table (
    id uuid, name text, beat bigint, ttl_ms bigint, dead boolean, peer boolean, place text, revoked bigint,
    era_id uuid, quarantine boolean, longest_ttl_ms bigint, works_with integer
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
    first boolean := true;
begin
    for id, name, beat, ttl_ms, dead, peer, place, revoked, era_id, quarantine, longest_ttl_ms, works_with in
        select * from leadergroup_real.beat(beat.session, beat.watch)
    loop
        if first then
            perform conform.note(
                at_ms, sync, 'beat', beat.session, beat => beat, grant_id => era_id,
                verdict => case when dead then 'dead' when quarantine then 'quarantine' else 'alive' end
            );
            first := false;
        end if;
        return next;
    end loop;
end
$$;

create function leadergroup.mark_dead(sessions uuid[], beats bigint[], era_id uuid default null)
returns table (id uuid, marked boolean)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
begin
    for id, marked in
        select * from leadergroup_real.mark_dead(mark_dead.sessions, mark_dead.beats, mark_dead.era_id)
    loop
        if marked then
            perform conform.note(at_ms, sync, 'mark_dead', id);
        end if;
        return next;
    end loop;
end
$$;

create function leadergroup.acquire(
    session uuid, requests jsonb, patience_ms integer default 500, force_ms integer default 250
)
returns table (
    place bigint, verdict text, token bigint, delay_ms bigint, group_id text, protocol integer, blockers text,
    holder_session uuid, holder_ttl_ms bigint, holder_silent_ms bigint, era_id uuid
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
    old constant boolean := conform.is_forged('era');
    unknown constant boolean := conform.is_forged('verdict');
    asked jsonb;
begin
    if unknown then
        for asked in select * from jsonb_array_elements(acquire.requests) loop
            perform conform.note(
                at_ms, sync, 'acquire', acquire.session, key => asked ->> 'key',
                grant_id => (asked ->> 'grant_id')::uuid, verdict => 'embargoed'
            );
        end loop;
        return query
        select r.place, 'embargoed', null::bigint, null::bigint, null::text, null::integer, null::text, null::uuid,
               null::bigint, null::bigint, (select m.era_id from leadergroup.meta as m)
        from jsonb_array_elements(acquire.requests) with ordinality as r (request, place);
        return;
    end if;
    for place, verdict, token, delay_ms, group_id, protocol, blockers, holder_session, holder_ttl_ms, holder_silent_ms,
        era_id in
        select * from leadergroup_real.acquire(
            acquire.session, acquire.requests, acquire.patience_ms, acquire.force_ms
        )
    loop
        asked := acquire.requests -> (place - 1)::integer;
        perform conform.note(
            at_ms, sync, 'acquire', acquire.session, key => asked ->> 'key', token => token,
            grant_id => (asked ->> 'grant_id')::uuid, verdict => verdict
        );
        era_id := case when old then '00000000-0000-4000-8000-000000000000' else era_id end;
        return next;
    end loop;
end
$$;

create function leadergroup.release(session uuid, releases jsonb)
returns table (
    place bigint, verdict text, next_grant uuid, next_session uuid, group_id text, protocol integer, blockers text
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
    asked jsonb;
begin
    for place, verdict, next_grant, next_session, group_id, protocol, blockers in
        select * from leadergroup_real.release(release.session, release.releases)
    loop
        asked := release.releases -> (place - 1)::integer;
        perform conform.note(
            at_ms, sync, 'release', release.session, key => asked ->> 'key', token => (asked ->> 'token')::bigint,
            grant_id => next_grant, verdict => verdict
        );
        return next;
    end loop;
end
$$;

create function leadergroup.give_up(
    session uuid, key text, grant_id uuid, out next_grant uuid, out next_session uuid
)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
begin
    if conform.is_forged('give_up') then
        raise exception 'give_up is not answered' using errcode = 'query_canceled';
    end if;
    select g.next_grant, g.next_session into next_grant, next_session
    from leadergroup_real.give_up(session, key, grant_id) as g;
    perform conform.note(at_ms, sync, 'give_up', session, key => key, grant_id => grant_id);
end
$$;

-- A hint that is not needed: it is noted, and can be lost.
create function leadergroup.wake(session uuid, grant_id uuid) returns void
language plpgsql volatile
as $$
#variable_conflict use_variable
begin
    perform conform.note(
        conform.uptime(), current_setting('synchronous_commit'), 'wake', session, grant_id => grant_id
    );
    if not conform.is_forged('wake') then
        perform leadergroup_real.wake(session, grant_id);
    end if;
end
$$;

create function leadergroup.close(session uuid, in_order boolean default true) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
    answer boolean;
begin
    answer := leadergroup_real.close(session, in_order);
    perform conform.note(at_ms, sync, 'close', session, verdict => answer::text);
    return answer;
end
$$;

create function leadergroup.end_quarantine(era_id uuid) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
    longest constant bigint := (select max(s.ttl_ms) from leadergroup.session as s where not s.dead);
    answer boolean;
begin
    answer := leadergroup_real.end_quarantine(era_id);
    if answer then
        perform conform.note(at_ms, sync, 'end_quarantine', null, beat => longest, grant_id => era_id);
    end if;
    return answer;
end
$$;

create function leadergroup.commits_were_lost(era_id uuid) returns boolean
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
    answer boolean;
begin
    answer := leadergroup_real.commits_were_lost(era_id);
    perform conform.note(at_ms, sync, 'commits_were_lost', null, grant_id => era_id, verdict => answer::text);
    return answer;
end
$$;

-- Notes what a change of a row means. A change that no function of the protocol made was made by hand.
create function conform.changed() returns trigger
language plpgsql volatile
as $$
declare
    context text;
    at_ms constant bigint := conform.uptime();
    sync constant text := current_setting('synchronous_commit');
begin
    get diagnostics context = pg_context;
    if context !~ 'function leadergroup(_real)?[.]' then
        perform conform.note(at_ms, sync, 'hand', null, verdict => tg_table_name);
    end if;
    if tg_table_name = 'lock' then
        if tg_op <> 'INSERT' and old.holder_uid is not null
           and (tg_op = 'DELETE' or new.holder_uid is null or new.token <> old.token) then
            perform conform.note(at_ms, sync, 'end', old.session, key => old.key, token => old.token);
        end if;
        if tg_op <> 'DELETE' and new.holder_uid is not null
           and (tg_op = 'INSERT' or old.holder_uid is null or new.token <> old.token) then
            perform conform.note(
                at_ms, sync, 'grant', new.session, key => new.key, token => new.token, grant_id => new.grant_id
            );
        end if;
    elsif tg_table_name = 'waiter' then
        if tg_op = 'INSERT' then
            perform conform.note(at_ms, sync, 'queue', new.session, key => new.key, grant_id => new.grant_id);
        end if;
    elsif tg_table_name = 'meta' then
        if tg_op = 'UPDATE' and new.era_id <> old.era_id then
            perform conform.note(at_ms, sync, 'era', null, grant_id => new.era_id);
        end if;
    end if;
    return null;
end
$$;

create trigger conform after insert or update or delete on leadergroup.lock
for each row execute function conform.changed();
create trigger conform after insert or update or delete on leadergroup.waiter
for each row execute function conform.changed();
create trigger conform after insert or update or delete on leadergroup.session
for each row execute function conform.changed();
create trigger conform after insert or update or delete on leadergroup.meta
for each row execute function conform.changed();

grant usage on schema leadergroup, leadergroup_real, conform to public;
grant select, insert, update, delete on all tables in schema leadergroup to public;
grant usage, select on all sequences in schema leadergroup to public;
