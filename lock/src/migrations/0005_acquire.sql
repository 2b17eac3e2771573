-- Keys that programs hold directly: acquired at once, or waited for in a queue.

-- The queues of the keys; the smallest id is next. Rows of dead sessions are skipped, and removed by later statements.
create table leadergroup.waiter (
    key text collate "C" not null,
    id bigint generated always as identity,
    grant_id uuid not null,
    session uuid not null,
    holder_uid text collate "C" not null,
    holder_namespace text collate "C" not null,
    holder_name text collate "C" not null,
    reason text collate "C" not null,
    delay_ms bigint not null default 0,
    asked_at timestamptz not null default now(),
    primary key (key, id)
);
create index waiter_grant on leadergroup.waiter (grant_id);

-- Notifies a session to look at this request. Sent after the commit that it reports, in a transaction of its own:
-- inside that commit's transaction, NOTIFY would make the commits of the whole server queue up. It is only a hint, so
-- its commit does not wait for the disk.
create function leadergroup.wake(session uuid, grant_id uuid) returns void
language sql volatile
begin atomic
    select pg_catalog.set_config('synchronous_commit', 'off', true),
           pg_catalog.pg_notify('leadergroup_' || replace(wake.session::text, '-', ''), wake.grant_id::text);
end;

-- The same for all sessions: a key may be free (''), or a session that lives gave up its claim to a key ('yielded KEY').
create function leadergroup.wake_all(word text) returns void
language sql volatile
begin atomic
    select pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('leadergroup', wake_all.word);
end;

-- The functions below do not set search_path, which would cost more than their own work: they run with the caller's
-- rights, and qualify every name that is not PostgreSQL's own.

-- The state that a request for a key would find. Locks nothing. Verdicts:
--   missing, newer, tombstone, foreign: there is no row that the request could take
--   granted: it holds the key already
--   held: a living session holds the key
--   quarantine: another program may hold it, by a grant that the database has lost
--   delayed: the last holder ended uncleanly, and its delay is not over for this request
--   behind: free, but others are before it in the queue
--   free
create function leadergroup.look(
    session uuid, key text, grant_id uuid, sat_out bigint, quarantine boolean,
    out verdict text, out token bigint, out delay_ms bigint, out place bigint, out group_id text, out protocol integer,
    out holder_session uuid, out holder_ttl_ms bigint, out holder_silent_ms bigint
)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    select case
               when l.key is null then 'missing'
               when l.protocol > 1 then 'newer'
               when l.tombstone then 'tombstone'
               when l.group_id <> leadergroup.programs() then 'foreign'
               when not h.dead and l.session = look.session and l.grant_id = look.grant_id then 'granted'
               when not h.dead then 'held'
               when look.quarantine then 'quarantine'
               when l.holder_uid is not null and not coalesce(h.closed, false) and l.delay_ms > 0
                    and l.token is distinct from look.sat_out then 'delayed'
               when l.awaited and exists (
                   select from leadergroup.waiter as w join leadergroup.session as s on s.id = w.session
                   where w.key = look.key and not s.dead and (p.place is null or w.id < p.place)
               ) then 'behind'
               else 'free'
           end,
           l.token, l.delay_ms, p.place, l.group_id, l.protocol,
           h.id, h.ttl_ms, case when not h.dead then (extract(epoch from now() - h.seen) * 1000)::bigint end
    into look.verdict, look.token, look.delay_ms, look.place, look.group_id, look.protocol,
         look.holder_session, look.holder_ttl_ms, look.holder_silent_ms
    from (
        select min(w.id) as place from leadergroup.waiter as w
        where w.key = look.key and w.grant_id = look.grant_id and w.session = look.session
    ) as p
    left join leadergroup.lock as l on l.key = look.key
    left join leadergroup.session as h on h.id = l.session;
end
$$;

-- Grants the key to a request of a living session, and returns the token. The caller has locked the row FOR UPDATE, and
-- passed the fence. In quarantine, or if the history has changed, nothing is done, and the answer is NULL. If the term
-- before has not ended yet, it ends with `end_reason`.
create function leadergroup.begin_term(
    key text, session uuid, grant_id uuid, uid text, namespace text, name text, reason text, delay_ms bigint,
    end_reason text
) returns bigint
language plpgsql volatile
as $$
declare
    granted bigint;
begin
    update leadergroup.lock as l
    set token = f.next, confirmed_token = f.next, era = f.era, session = begin_term.session,
        grant_id = begin_term.grant_id, holder_uid = begin_term.uid, holder_namespace = begin_term.namespace,
        holder_name = begin_term.name, reason = begin_term.reason, delay_ms = begin_term.delay_ms, protocol = 1,
        lock_timestamp = clock_timestamp(), end_reason = begin_term.end_reason
    from (
        select m.era, m.era_id, leadergroup.next_token(
            r.token, r.era, (select max(t.token) from leadergroup.term as t where t.key = r.key), 0, m
        ) as next
        from leadergroup.lock as r cross join leadergroup.meta as m
        where r.key = begin_term.key and m.history = leadergroup.history() and not m.quarantine
    ) as f
    where l.key = begin_term.key
    returning l.token into granted;
    return granted;
end
$$;

-- Updates `awaited`. The caller has locked the row.
create function leadergroup.note_whether_awaited(key text) returns void
language plpgsql volatile
as $$
begin
    update leadergroup.lock as l set awaited = not l.awaited
    where l.key = note_whether_awaited.key
    and l.awaited <> exists (select from leadergroup.waiter as w where w.key = note_whether_awaited.key);
end
$$;

-- Acquires keys, or looks up the state of earlier requests. `requests` is an array of objects with:
--   key, reason
--   uid, namespace, name: the holder
--   grant_id: a new random UUID for each request. Use it again to look up the request, and when an answer was lost
--   wait: whether to queue up
--   delay_ms (optional): the lock delay: how long no one gets the key after this session was marked dead
--   sat_out (optional): the token of the term whose lock delay is over, as the caller measured it since its first
--     answer `delayed`
--   void_after (optional): the request has no effect once the session's `beat` is larger than this. So a program can
--     tell when a statement that it gave up can no longer take effect
--
-- A call with several requests never waits: requests that cannot be answered at once have no row in the answer, and
-- must be made one by one. A call with a single request waits for fenced transactions of the last holder
-- (leadergroup.fence_pass), and must be the only statement of its transaction. Verdicts:
--   granted, with the token and the era           waiting: in the queue           held: others hold it, or wait for it
--   delayed: like held or waiting; with the token of the term that ended uncleanly, and its lock delay
--   quarantine: like held or waiting, as commits may have been lost
--   fenced: `blockers` did not end in time        forbidden: and this role may not terminate them
--   busy: another request takes it at this moment; try again                      full: the queue is full
--   dead: the caller's session is dead            void: the request is void
--   tombstone, foreign, newer: not a key that a program can acquire
-- The answers `held` and `waiting` contain the session of the holder (of the first waiter, if the key is free), its
-- ttl, and for how long its heartbeat has been silent by the database's clock. These help to watch that session, and
-- prove nothing.
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
    count constant integer := jsonb_array_length(acquire.requests);
    answered bigint[] := '{}';
    q record;
    l record;
begin
    -- First, keys that are free and have no waiters. No rows but theirs are locked, not even the caller's session: if
    -- that is marked dead at the same time, this counts as having happened just before; no program relies on a grant
    -- when its session may be marked dead. FOR UPDATE, because the update alone would not conflict with a fence that
    -- locks the row because its snapshot is older. Rows that others have locked are skipped, so that they do not delay
    -- the other requests.
    for place, token, era_id in
        with idle as materialized (
            select r.*, l.token as last, m.era, m.era_id, leadergroup.next_token(
                       l.token, l.era, (select max(t.token) from leadergroup.term as t where t.key = l.key), 0, m
                   ) as token
            from (
                select p.* from rows from (jsonb_to_recordset(acquire.requests) as (
                    key text, grant_id uuid, uid text, namespace text, name text, reason text, delay_ms bigint,
                    void_after bigint
                )) with ordinality as p (key, grant_id, uid, namespace, name, reason, delay_ms, void_after, place)
                -- The limit removes none. It tells the planner that there are few, so that it looks the rows up one by
                -- one.
                limit count
            ) as r
            join leadergroup.lock as l on l.key = r.key collate "C"
            cross join leadergroup.meta as m
            where l.session is null and l.holder_uid is null and not l.awaited
            and l.group_id = leadergroup.programs() and not l.tombstone and l.protocol <= 1
            and m.only_row and m.history = leadergroup.history() and not m.quarantine
            and num_nulls(r.grant_id, r.uid, r.namespace, r.name, r.reason) = 0
            and exists (
                select from leadergroup.session as s
                where s.id = acquire.session and not s.dead
                and (r.void_after is null or s.beat <= r.void_after)
            )
        ),
        free as materialized (
            select i.*, l.ctid as id from idle as i join leadergroup.lock as l on l.key = i.key collate "C"
            -- Once more, because these are checked again in a version of the row that is newer than the snapshot. A join
            -- by ctid is not checked again by all versions of PostgreSQL.
            where l.token = i.last and l.session is null and l.holder_uid is null and not l.awaited and not l.tombstone
            -- Fails while a fenced transaction of the term before is under way. Tried apart, for keys that were found
            -- to be free: in a scan of all rows it would lock the fences of other keys, which are busy then.
            and pg_try_advisory_xact_lock(leadergroup.fence_id(i.key))
            for update of l skip locked
        )
        -- Of two requests for one key, one gets it. A row that changed since the snapshot is locked, but does not match
        -- here; its request is answered below.
        update leadergroup.lock as l
        set token = f.token, confirmed_token = f.token, era = f.era, session = acquire.session, grant_id = f.grant_id,
            holder_uid = f.uid, holder_namespace = f.namespace, holder_name = f.name, reason = f.reason,
            delay_ms = coalesce(f.delay_ms, 0), protocol = 1, lock_timestamp = clock_timestamp(), end_reason = null
        from free as f
        where l.ctid = f.id
        returning f.place, f.token, f.era_id
    loop
        verdict := 'granted';
        answered := answered || place;
        return next;
    end loop;
    if cardinality(answered) = count then
        return;
    end if;
    for q in
        select r.* from rows from (jsonb_to_recordset(acquire.requests) as (
            key text, grant_id uuid, uid text, namespace text, name text, reason text, wait boolean, sat_out bigint
        )) with ordinality as r (key, grant_id, uid, namespace, name, reason, wait, sat_out, place)
        where r.place <> all (answered)
    loop
        if num_nulls(q.key, q.grant_id, q.uid, q.namespace, q.name, q.reason, q.wait) > 0 then
            raise exception 'leadergroup.acquire: key, grant_id, uid, namespace, name, reason and wait are required'
                using errcode = 'null_value_not_allowed';
        end if;
        select * into l from leadergroup.look(acquire.session, q.key, q.grant_id, q.sat_out, true) as l;
        if l.verdict = 'granted' or l.verdict = 'held' and (not q.wait or l.place is not null) and exists (
            select from leadergroup.session as s where s.id = acquire.session and not s.dead
        ) then
            place := q.place;
            verdict := case when l.verdict = 'held' and q.wait then 'waiting' else l.verdict end;
            token := l.token;
            holder_session := l.holder_session;
            holder_ttl_ms := l.holder_ttl_ms;
            holder_silent_ms := l.holder_silent_ms;
            era_id := (select m.era_id from leadergroup.meta as m);
            return next;
        elsif count = 1 then
            return query select q.place, a.* from leadergroup.acquire_one(
                acquire.session, acquire.requests -> 0, acquire.patience_ms, acquire.force_ms
            ) as a;
        end if;
    end loop;
end
$$;

comment on function leadergroup.acquire(uuid, jsonb, integer, integer) is
    'Acquires keys, queues up for them, and looks up the state of requests; see the documentation of the SQL protocol.';

-- The rest of leadergroup.acquire, for one request that could not be answered at once. Everything that may take time
-- comes first, then the row's lock, then another look, because the state may have changed. A request enters the queue
-- only with the row locked, so that no release overlooks a waiter.
create function leadergroup.acquire_one(
    session uuid, request jsonb, patience_ms integer, force_ms integer,
    out verdict text, out token bigint, out delay_ms bigint, out group_id text, out protocol integer, out blockers text,
    out holder_session uuid, out holder_ttl_ms bigint, out holder_silent_ms bigint, out era_id uuid
)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    q record;
    l record;
    pass record;
    quarantine boolean;
    fence bigint;
    created boolean := false;
    passed boolean := false;
    queues boolean;
begin
    select r.* into q from jsonb_to_record(request) as r (
        key text, grant_id uuid, uid text, namespace text, name text, reason text, wait boolean, delay_ms bigint,
        sat_out bigint, void_after bigint
    );
    fence := leadergroup.fence_id(q.key);
    -- A request that does not queue up does not wait while another one takes the key: of many at the same time, each
    -- would wait for all before it, only to find the key held. (Requests that pass this check at the same moment still
    -- do.) Fenced transactions share the lock, and are waited for.
    if not q.wait and not (
        case when pg_try_advisory_lock_shared(fence) then pg_advisory_unlock_shared(fence) else false end
    ) then
        verdict := 'busy';
        blockers := leadergroup.fence_blockers(fence);
        return;
    end if;
    -- Either a death mark waits for what follows, or this finds the session dead.
    perform from leadergroup.session as s where s.id = session and not s.dead for key share;
    if not found then
        verdict := 'dead';
        return;
    end if;
    -- If the history is not the era's, this counts as a quarantine, and the answer has no era. A heartbeat or
    -- leadergroup.present_era() begins the new era. Beginning it here would stop all heartbeats for as long as this
    -- waits.
    select m.quarantine or m.history <> leadergroup.history(),
           case when m.history = leadergroup.history() then m.era_id end
    into quarantine, era_id
    from leadergroup.meta as m;
    l := leadergroup.look(session, q.key, q.grant_id, q.sat_out, quarantine);
    if l.verdict = 'missing' then
        insert into leadergroup.lock (key, group_id) values (q.key, leadergroup.programs())
        on conflict on constraint lock_pkey do nothing;
        created := true;
        l := leadergroup.look(session, q.key, q.grant_id, q.sat_out, quarantine);
    end if;
    queues := q.wait and l.place is null and l.verdict in ('held', 'delayed', 'behind', 'quarantine');
    if l.verdict = 'free' then
        passed := pg_try_advisory_xact_lock(fence);
        if not passed and created then
            -- Another request for the new key holds the fence. It may be waiting for the row that was created here.
            verdict := 'busy';
            blockers := leadergroup.fence_blockers(fence);
            return;
        elsif not passed then
            -- Waits for the old holder's fenced transactions before the row is locked.
            pass := leadergroup.fence_pass(q.key, patience_ms, force_ms);
            passed := pass.outcome = 'open';
            if not passed then
                verdict := case pass.outcome when 'closed' then 'fenced' else pass.outcome end;
                blockers := pass.blockers;
                return;
            end if;
        end if;
        perform from leadergroup.lock as r where r.key = q.key for update;
    elsif queues then
        perform from leadergroup.lock as r where r.key = q.key for no key update;
    end if;
    if passed or queues then
        l := leadergroup.look(session, q.key, q.grant_id, q.sat_out, quarantine);
    end if;
    -- Checked after everything that may take time: from here on, giving the request up waits for the row's lock.
    if q.void_after < (select s.beat from leadergroup.session as s where s.id = session) then
        verdict := 'void';
        return;
    end if;
    verdict := l.verdict;
    token := l.token;
    delay_ms := l.delay_ms;
    group_id := l.group_id;
    protocol := l.protocol;
    holder_session := l.holder_session;
    holder_ttl_ms := l.holder_ttl_ms;
    holder_silent_ms := l.holder_silent_ms;
    if l.verdict = 'free' then
        -- A transaction that has passed the fence may be waiting for the row that is locked here: so this must not
        -- wait.
        if not passed and not pg_try_advisory_xact_lock(fence) then
            verdict := 'busy';
            return;
        end if;
        perform from leadergroup.lock as r where r.key = q.key for update;
        token := leadergroup.begin_term(
            q.key, session, q.grant_id, q.uid, q.namespace, q.name, q.reason, coalesce(q.delay_ms, 0),
            'its session ended'
        );
        if token is null then
            verdict := 'busy';
            return;
        end if;
        verdict := 'granted';
        delete from leadergroup.waiter as w where w.key = q.key and w.id <= l.place;
        perform leadergroup.note_whether_awaited(q.key);
    elsif q.wait and l.place is null and l.verdict in ('held', 'delayed', 'behind', 'quarantine') then
        if leadergroup.queue_is_full(q.key) then
            verdict := 'full';
            return;
        end if;
        -- A place in the queue that a crash of the server loses is requested again, so the commit need not wait for the
        -- disk with the row locked. This applies to the whole transaction, which is why the request must be all of it.
        perform set_config('synchronous_commit', 'off', true);
        update leadergroup.lock as r set awaited = true where r.key = q.key and not r.awaited;
        insert into leadergroup.waiter
            (key, grant_id, session, holder_uid, holder_namespace, holder_name, reason, delay_ms)
        values
            (q.key, q.grant_id, session, q.uid, q.namespace, q.name, q.reason, coalesce(q.delay_ms, 0));
    end if;
    if verdict = 'behind' then
        -- The caller watches the first waiter, which may have died.
        select s.id, s.ttl_ms, (extract(epoch from now() - s.seen) * 1000)::bigint
        into holder_session, holder_ttl_ms, holder_silent_ms
        from leadergroup.waiter as w join leadergroup.session as s on s.id = w.session
        where w.key = q.key and not s.dead order by w.id limit 1;
    end if;
    verdict := case
        when verdict in ('held', 'behind') then case when q.wait then 'waiting' else 'held' end
        -- Pruning removed the row at this moment.
        when verdict = 'missing' then 'busy'
        else verdict
    end;
end
$$;

-- Whether the queue is full, after removing the waiters of dead sessions if necessary. The caller has locked the row.
create function leadergroup.queue_is_full(key text) returns boolean
language plpgsql volatile
as $$
declare
    most constant integer := 10000;
begin
    for round in 1..2 loop
        perform from leadergroup.waiter as w where w.key = queue_is_full.key order by w.id offset most - 1 limit 1;
        if not found then
            return false;
        end if;
        delete from leadergroup.waiter as w
        where w.key = queue_is_full.key
        and not exists (select from leadergroup.session as s where s.id = w.session and not s.dead);
    end loop;
    return true;
end
$$;
