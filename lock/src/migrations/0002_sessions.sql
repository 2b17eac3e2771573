-- Sessions: one for each running process. A session's heartbeat keeps everything that it holds.

-- Other sessions watch `beat`. `seen` and `dead_at` are for people and for pruning: the database's clock never decides
-- whether a session has expired. The free space keeps each heartbeat a heap-only update: no index has a column that a
-- heartbeat changes.
create table leadergroup.session (
    id uuid primary key,
    name text collate "C" not null,
    -- Sessions with the same value watch each other.
    peers text collate "C",
    -- Where the process runs, such as its node. Peers see it; nothing here depends on it.
    place text collate "C",
    beat bigint not null default 1,
    ttl_ms bigint not null check (ttl_ms > 0),
    -- How many of its keys were released by force.
    revoked bigint not null default 0,
    dead boolean not null default false,
    -- Ended in order, by its own process: no lock delay applies to its keys.
    closed boolean not null default false,
    registered_at timestamptz not null default now(),
    seen timestamptz not null default now(),
    dead_at timestamptz
) with (fillfactor = 20);
create index session_living on leadergroup.session (id) where not dead;
create index session_peers on leadergroup.session (peers) where not dead and peers is not null;

-- Registers a session. The caller chooses the id, so that a call whose answer was lost can be repeated safely.
create function leadergroup.register(
    id uuid, name text, ttl_ms bigint, peers text default null, place text default null,
    out era_id uuid, out quarantine boolean
)
language plpgsql volatile
as $$
begin
    select p.era_id, p.quarantine into register.era_id, register.quarantine from leadergroup.present_era() as p;
    insert into leadergroup.session (id, name, ttl_ms, peers, place)
    values (register.id, register.name, register.ttl_ms, register.peers, register.place)
    on conflict on constraint session_pkey do nothing;
end
$$;

comment on function leadergroup.register(uuid, text, bigint, text, text) is
    'Registers a session with a new random id. Others may mark it dead when its heartbeat has not moved for ttl_ms.';

-- Sends one heartbeat. The first row is the session's own, with `dead` set if it was marked dead, closed or never
-- registered. The sessions to watch follow: a few neighbours, so that every session is watched by another one, however
-- many there are; its peers; and the sessions named in `watch`, such as the holders of keys that it waits for. All rows
-- repeat the values about the database. `longest_ttl_ms`, the longest ttl of all living sessions, is given only in
-- quarantine.
create function leadergroup.beat(session uuid, watch uuid[] default '{}')
returns table (
    id uuid, name text, beat bigint, ttl_ms bigint, dead boolean, peer boolean, place text, revoked bigint,
    era_id uuid, quarantine boolean, longest_ttl_ms bigint, works_with integer
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    own leadergroup.session;
    era record;
    longest bigint;
    works integer;
begin
    update leadergroup.session as s set beat = beat + 1, seen = now()
    where s.id = beat.session and not s.dead
    returning s.* into own;
    if not found then
        select s.* into own from leadergroup.session as s where s.id = beat.session;
    end if;
    select p.* into era from leadergroup.present_era() as p;
    if era.quarantine then
        longest := (select max(s.ttl_ms) from leadergroup.session as s where not s.dead);
    end if;
    works := (select max(v.works_with) from leadergroup.schema_version as v);
    return query
    select own.id, own.name, own.beat, own.ttl_ms, coalesce(own.dead, true), true, own.place, own.revoked,
           era.era_id, era.quarantine, longest, works;
    return query
    with neighbours as (
        select n.id, n.name, n.beat, n.ttl_ms, n.dead, n.peers, n.place, n.revoked from (
            (select s.* from leadergroup.session as s
             where not s.dead and s.id > beat.session order by s.id limit 3)
            union all
            (select s.* from leadergroup.session as s
             where not s.dead and s.id < beat.session order by s.id limit 3)
        ) as n limit 3
    )
    select w.id, w.name, w.beat, w.ttl_ms, w.dead, coalesce(w.peers = own.peers, false), w.place, w.revoked,
           era.era_id, era.quarantine, longest, works
    from (
        select * from neighbours
        union
        select s.id, s.name, s.beat, s.ttl_ms, s.dead, s.peers, s.place, s.revoked
        from leadergroup.session as s
        where s.peers = own.peers and s.peers is not null and not s.dead and s.id <> own.id
        union
        select s.id, s.name, s.beat, s.ttl_ms, s.dead, s.peers, s.place, s.revoked
        from leadergroup.session as s
        where s.id = any (beat.watch) and s.id <> beat.session
    ) as w;
end
$$;

comment on function leadergroup.beat(uuid, uuid[]) is
    'Sends a heartbeat and returns the sessions to watch, the own one first.';

-- Marks sessions dead whose heartbeat counter still has the observed value. Returns those of the given sessions that
-- are dead now; `marked` says whether this call did it. A session with a change under way is skipped, to be tried
-- again: a change holds FOR KEY SHARE on its own session, which conflicts with FOR UPDATE, but not with a heartbeat.
-- `era_id`, if given, is the era of the answers in which the counters were observed: a server that is in another one has
-- other counters, and marks none.
create function leadergroup.mark_dead(sessions uuid[], beats bigint[], era_id uuid default null)
returns table (id uuid, marked boolean)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    return query
    with observed as materialized (
        select o.id, o.beat from unnest(mark_dead.sessions, mark_dead.beats) as o (id, beat)
    ),
    expired as materialized (
        select s.id from leadergroup.session as s join observed as o on o.id = s.id
        where s.beat = o.beat and not s.dead
        and (mark_dead.era_id is null or exists (
            select from leadergroup.meta as m
            where m.era_id = mark_dead.era_id and m.history = leadergroup.history()
        ))
        for update of s skip locked
    ),
    marked as (
        update leadergroup.session as s set dead = true, dead_at = now()
        from expired as e where s.id = e.id
        returning s.id
    )
    select o.id, m.id is not null
    from observed as o
    left join marked as m on m.id = o.id
    left join leadergroup.session as s on s.id = o.id
    where m.id is not null or s.id is null or s.dead;
end
$$;

comment on function leadergroup.mark_dead(uuid[], bigint[], uuid) is
    'Marks sessions dead whose heartbeat counter did not change while the caller watched it for their ttl on its own '
    'monotonic clock. Never call it with a counter that was not watched for so long.';

-- Ends the session. Its rows may be taken at once, as a row of a dead session; where the holder asked for a lock delay
-- and the end was not `in_order`, after that delay. No lock row is written, however many the session holds.
create function leadergroup.close(session uuid, in_order boolean default true) returns boolean
language plpgsql volatile
as $$
begin
    update leadergroup.session as s set dead = true, dead_at = now(), closed = close.in_order
    where s.id = close.session and not s.dead;
    return found;
end
$$;
