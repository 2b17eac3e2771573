-- Locks for programs that hold them themselves: taken, waited for and handed over in one step each. Functions, because the
-- row has to be locked *before* the waiters are read: a single statement reads them by a snapshot from before, and would
-- overlook one that queued up in between.

-- A session that ended in order, by its own word: what it held is free at once, whatever delay was asked for.
alter table leadergroup.session add column closed boolean not null default false;

-- Which of the session's changes of its ttl the row shows. An earlier one that comes late must not undo a later one.
alter table leadergroup.session add column ttl_change bigint not null default 0;

-- How long nobody gets the key after the present holder's session was marked dead. Waiters measure it themselves, each on
-- its own clock from when it learns of that end: the database's clock decides nothing.
alter table leadergroup.lock add column delay_ms bigint not null default 0;

-- Whether somebody may wait for the key. Set, under the row's lock, by whoever queues up; cleared by whoever finds, under that
-- lock, that nobody does. So that the usual change of a free key, or to one, needs to lock nothing but the row, and not to read who waits.
alter table leadergroup.lock add column awaited boolean not null default false;

-- A key that its holder gives up keeps how and by what the term ended, at `lock_timestamp`, until the next term's row takes that
-- over: so the usual release changes one row. By the id a repetition is recognised.
alter table leadergroup.lock add column end_reason text, add column end_id uuid;
alter table leadergroup.term
    add column previous_ended_at timestamptz, add column previous_end_reason text, add column previous_end_id uuid;

-- The terms, with how each of them ended, wherever that is written.
create view leadergroup.terms as
select t.key, t.token, t.grant_id, t.group_id, t.session, t.owner_uid, t.owner_namespace, t.owner_name, t.reason,
       t.granted_at, t.confirmed_at,
       coalesce(t.ended_at, n.previous_ended_at, case when l.end_id is not null then l.lock_timestamp end) as ended_at,
       coalesce(t.end_reason, n.previous_end_reason, l.end_reason) as end_reason,
       coalesce(n.previous_end_id, l.end_id) as end_id
from leadergroup.term as t
left join lateral (
    select n.previous_ended_at, n.previous_end_reason, n.previous_end_id
    from leadergroup.term as n
    where n.key = t.key and n.token > t.token
    order by n.token limit 1
) as n on true
left join leadergroup.lock as l on l.key = t.key and l.token = t.token;

-- The latest era in which keys that programs hold are given to new holders. When commits may have been lost, so may have
-- been a grant, and its holder still believe in it. The programs that live then count, each on its own clock, until such
-- a belief is over, and say so here. The operator's groups do not wait for that: who acts there is not a matter of belief.
-- One row, in a table of its own: changing `meta` could deadlock with the heartbeats of programs that are at work.
create table leadergroup.settled (
    only_row boolean primary key default true check (only_row),
    era bigint not null
);
insert into leadergroup.settled (era) select era from leadergroup.meta;

-- A row for as long as the era has not settled.
create view leadergroup.unsettled as
select m.era from leadergroup.meta as m join leadergroup.settled as s on s.era < m.era;

-- Who waits for a key; the smallest id is next. Rows of dead sessions are skipped, and removed in passing.
create table leadergroup.waiter (
    key text not null,
    id bigint generated always as identity,
    request uuid not null,
    session uuid not null,
    owner_uid text not null,
    owner_namespace text not null,
    owner_name text not null,
    reason text not null,
    delay_ms bigint not null default 0,
    asked_at timestamptz not null default now(),
    primary key (key, id)
);

-- A waiter finds its own place without reading the whole queue.
create index waiter_request on leadergroup.waiter (request);

-- Makes the request of a living session the holder. The row is locked FOR UPDATE, and the fence passed. The token is above
-- the row's, everything in the history, and whatever lost commits may have handed out. NULL, and nothing done, if the
-- database's history is not the one that tokens were granted in, or its era has not settled. If a term ends by this, how and by
-- what.
--
-- None of these functions has a search_path of its own, which would cost more than what they do: they run with the rights
-- of whoever calls them, and name the schema of all that is not PostgreSQL's.
create function leadergroup.install(
    key text, session uuid, request uuid, uid text, namespace text, name text, reason text, delay_ms bigint,
    protocol integer, jump bigint, end_reason text default null, end_id uuid default null
) returns bigint
language plpgsql volatile
as $$
declare
    granted bigint;
begin
    with fresh as (
        select 1 + greatest(
                   l.token + case when l.era <> m.era then install.jump else 0 end,
                   m.era * install.jump,
                   (select max(t.token) from leadergroup.term as t where t.key = l.key)
               ) as token, m.era, l.lock_timestamp, l.end_reason, l.end_id
        from leadergroup.lock as l
        cross join leadergroup.meta as m join leadergroup.present as p using (system_identifier, timeline)
        where l.key = install.key and not exists (select from leadergroup.unsettled)
    ),
    changed as (
        update leadergroup.lock as l
        set token = f.token, confirmed_token = f.token, era = f.era, session = install.session,
            grant_id = install.request, owner_uid = install.uid, owner_namespace = install.namespace,
            owner_name = install.name, lock_timestamp = clock_timestamp(), delay_ms = install.delay_ms, protocol = install.protocol,
            end_reason = null, end_id = null
        from fresh as f
        where l.key = install.key
        returning l.token, l.group_id, f.lock_timestamp, f.end_reason, f.end_id
    )
    insert into leadergroup.term
        (key, token, grant_id, group_id, session, owner_uid, owner_namespace, owner_name, reason, confirmed_at,
         previous_ended_at, previous_end_reason, previous_end_id)
    select install.key, c.token, install.request, c.group_id, install.session, install.uid, install.namespace,
           install.name, install.reason, clock_timestamp(),
           case when install.end_id is not null then clock_timestamp() when c.end_id is not null then c.lock_timestamp end,
           coalesce(install.end_reason, c.end_reason), coalesce(install.end_id, c.end_id)
    from changed as c
    returning token into granted;
    return granted;
end
$$;

-- Whether there is no room for one more. Those that died make room. The row is locked.
create function leadergroup.queue_is_full(key text, most integer) returns boolean
language plpgsql volatile
as $$
begin
    for round in 1..2 loop
        perform from leadergroup.waiter as w
        where w.key = queue_is_full.key order by w.id offset queue_is_full.most - 1 limit 1;
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

-- Nobody waits for the key any more, as far as this can be told. The row is locked.
create function leadergroup.queue_is_over(key text) returns void
language plpgsql volatile
as $$
begin
    update leadergroup.lock as l set awaited = false
    where l.key = queue_is_over.key and l.awaited
    and not exists (select from leadergroup.waiter as w where w.key = queue_is_over.key);
end
$$;

-- Takes the key if nobody holds it and nobody who waits was there before. Else queues up, if told so. Repeating a request
-- is how its waiter looks whether it is its turn, and how a lost answer is resolved. Until the era has settled a key that
-- seems to be free may be held by one that the database has forgotten, and counts as held.
--
-- After an unclean end whose delay the asker has not sat out yet the answer is `delayed`, with the token of that term and
-- the delay. Whoever has waited for that long since its first such answer says so by naming the token (`delay_over`).
create function leadergroup.acquire(
    own uuid, protocol integer, jump bigint, key text, group_id text, request uuid, uid text, namespace text, name text,
    reason text, lock_delay_ms bigint, delay_over bigint, queue boolean, most_waiters integer,
    patience_ms integer, force_ms integer,
    out verdict text, out token bigint, out delay_ms bigint
)
language plpgsql volatile
as $$
declare
    r record;
    alive boolean := false;
    passed boolean := false;
    locked boolean := false;
    delayed boolean;
    fence constant bigint := leadergroup.fence_id(acquire.key);
begin
    for round in 1..5 loop
        -- Without locks first: most questions end here, with nothing written or locked, and so with nothing to commit. From
        -- the second or third round on the row is locked.
        select l.key is not null as known, l.token, l.grant_id, l.session, l.group_id, l.tombstone, l.protocol,
               coalesce(not h.dead, false) or exists (select from leadergroup.unsettled) as held,
               case when l.owner_uid is null or h.closed then 0 else l.delay_ms end as delay_ms,
               p.place,
               exists (
                   select from leadergroup.waiter as w join leadergroup.session as s on s.id = w.session
                   where w.key = acquire.key and not s.dead and (p.place is null or w.id < p.place)
               ) as behind_others
        into r
        from leadergroup.session as o
        cross join (
            select min(w.id) as place from leadergroup.waiter as w
            where w.key = acquire.key and w.request = acquire.request
        ) as p
        left join leadergroup.lock as l on l.key = acquire.key
        left join leadergroup.session as h on h.id = l.session
        where o.id = acquire.own and not o.dead;
        if not found then
            verdict := 'dead';
            return;
        end if;
        token := r.token;
        delay_ms := r.delay_ms;
        delayed := r.known and not r.held and r.delay_ms > 0 and r.token is distinct from acquire.delay_over;
        verdict := case
            when not r.known then null
            when r.protocol > acquire.protocol then 'newer'
            when r.tombstone then 'tombstone'
            when r.group_id <> acquire.group_id then 'foreign'
            when r.held and r.session = acquire.own and r.grant_id = acquire.request then 'granted'
            when r.held and not acquire.queue then 'held'
            when delayed and not acquire.queue then 'delayed'
            when delayed and r.place is not null then 'delayed'
            when r.held and r.place is not null then 'waiting'
        end;
        if verdict is not null then
            return;
        end if;
        -- Whoever only tries waits for fenced transactions, which share their lock, but not for one who is seen to change the
        -- holder, or to wait for that: of many that try at the same time each would wait for all before it, to find the key
        -- held. (Those that get past this at the same moment still do.)
        if not acquire.queue and not alive and not (
            case when pg_try_advisory_lock_shared(fence) then pg_advisory_unlock_shared(fence) else false end
        ) then
            verdict := 'busy';
            return;
        end if;
        -- Before anything is written or locked the own session is: a death mark waits for this, or this finds itself dead.
        if not alive then
            perform from leadergroup.session as s where s.id = acquire.own and not s.dead for key share;
            if not found then
                verdict := 'dead';
                return;
            end if;
            alive := true;
        end if;
        if not r.known then
            insert into leadergroup.lock (key, group_id, protocol)
            values (acquire.key, acquire.group_id, acquire.protocol)
            on conflict on constraint lock_pkey do nothing;
            continue;
        end if;
        if not r.held and not delayed and not r.behind_others then
            if passed then
                token := leadergroup.install(
                    acquire.key, acquire.own, acquire.request, acquire.uid, acquire.namespace, acquire.name,
                    acquire.reason, acquire.lock_delay_ms, acquire.protocol, acquire.jump
                );
                if token is null then
                    verdict := 'history';
                    return;
                end if;
                if r.place is not null then
                    delete from leadergroup.waiter as w where w.key = acquire.key and w.id <= r.place;
                end if;
                perform leadergroup.queue_is_over(acquire.key);
                verdict := 'granted';
                return;
            end if;
            -- The old holder's fenced transactions end before the row is locked.
            passed := pg_try_advisory_xact_lock(fence);
            if not passed and locked then
                -- Whoever has passed it waits for the row that we have locked.
                verdict := 'again';
                return;
            end if;
            if not passed and leadergroup.fence_pass(acquire.key, acquire.patience_ms, acquire.force_ms) <> 'open' then
                verdict := 'fenced';
                return;
            end if;
            passed := true;
            perform from leadergroup.lock as l where l.key = acquire.key for update;
            continue;
        end if;
        if not acquire.queue then
            -- Free, but others wait for it.
            verdict := 'held';
            return;
        end if;
        if r.place is null and not locked then
            -- Nobody can release the key unseen from now on. Look again: a release in between may just have given it to this
            -- very request, and taken it out of the queue.
            perform from leadergroup.lock as l where l.key = acquire.key for no key update;
            locked := true;
            continue;
        end if;
        if r.place is null then
            if leadergroup.queue_is_full(acquire.key, acquire.most_waiters) then
                verdict := 'full';
                return;
            end if;
            -- A place that a crash of the server takes away is asked for again: nothing to wait for the disk for, with the
            -- row locked. This counts for the whole transaction, of which the function is to be all.
            perform set_config('synchronous_commit', 'off', true);
            update leadergroup.lock as l set awaited = true where l.key = acquire.key and not l.awaited;
            insert into leadergroup.waiter
                (key, request, session, owner_uid, owner_namespace, owner_name, reason, delay_ms)
            values (acquire.key, acquire.request, acquire.own, acquire.uid, acquire.namespace, acquire.name,
                    acquire.reason, acquire.lock_delay_ms);
        end if;
        verdict := case when delayed then 'delayed' else 'waiting' end;
        return;
    end loop;
    -- The row changes under our eyes.
    verdict := 'again';
end
$$;

-- Gives a key up, straight to the first living waiter if there is one, or to the one that is named (`heir`); that one's
-- place does not matter, and the others keep theirs. The new holder's request and session come back, to be woken. Only with the token
-- of the present term, and only by the session that holds it, or by force (`own` is null): then the old holder's
-- come back as well, to be told. Until the era has settled nobody follows at once: the release may be the repetition of one
-- that was lost together with the grant to the next one, who may still believe in it.
create function leadergroup.release(
    own uuid, protocol integer, jump bigint, key text, group_id text, token bigint, reason text,
    heir_uid text, heir_name text, id uuid,
    out verdict text, out next_request uuid, out next_session uuid, out old_request uuid, out old_session uuid,
    out found_group text
)
language plpgsql volatile
as $$
declare
    named constant boolean := release.heir_uid is not null or release.heir_name is not null;
    r record;
    w record;
    passed boolean;
    installed boolean := false;
begin
    if release.own is not null then
        perform from leadergroup.session as s where s.id = release.own and not s.dead for key share;
        if not found then
            verdict := 'dead';
            return;
        end if;
    else
        -- Rows of others are not touched, nor waited for.
        select l.group_id into found_group from leadergroup.lock as l where l.key = release.key;
        if found_group <> release.group_id then
            verdict := 'foreign';
            return;
        end if;
    end if;
    -- If transactions of the own term are still under way nobody can follow at once; the first waiter will look again.
    passed := pg_try_advisory_xact_lock(leadergroup.fence_id(release.key));
    if passed then
        select l.token, l.session, l.owner_uid, l.protocol, l.group_id, l.tombstone, l.grant_id into r
        from leadergroup.lock as l where l.key = release.key for update;
    else
        select l.token, l.session, l.owner_uid, l.protocol, l.group_id, l.tombstone, l.grant_id into r
        from leadergroup.lock as l where l.key = release.key for no key update;
    end if;
    found_group := r.group_id;
    verdict := case
        when r.token is null then 'missing'
        when r.protocol > release.protocol then 'newer'
        when r.tombstone then 'tombstone'
        when r.group_id <> release.group_id then 'foreign'
        when r.token <> release.token then 'changed'
        when r.owner_uid is null or r.session is distinct from release.own and release.own is not null then
            case when release.own is null then 'free' else 'changed' end
        when named and (not passed or exists (select from leadergroup.unsettled)) then 'busy'
        else 'done'
    end;
    if verdict in ('changed', 'free') and exists (
        select from leadergroup.terms as t
        where t.key = release.key and t.token = release.token and t.end_id = release.id
    ) then
        -- A repetition: the answer to the first time was lost. Those whom it concerns may not have been told yet.
        verdict := 'done';
        next_request := r.grant_id;
        next_session := r.session;
        if release.own is null then
            select t.grant_id, t.session into old_request, old_session
            from leadergroup.term as t where t.key = release.key and t.token = release.token;
        end if;
        return;
    end if;
    if verdict <> 'done' then
        return;
    end if;
    -- A session that is being marked dead at this moment is passed over; its row would have to be waited for.
    select q.id, q.request, q.session, q.owner_uid, q.owner_namespace, q.owner_name, q.reason, q.delay_ms into w
    from leadergroup.waiter as q join leadergroup.session as s on s.id = q.session
    where q.key = release.key and not s.dead
    and (release.heir_uid is null or q.owner_uid = release.heir_uid)
    and (release.heir_name is null or q.owner_name = release.heir_name)
    order by q.id limit 1
    for key share of s skip locked;
    if named and w.request is null then
        verdict := 'no-heir';
        return;
    end if;
    next_request := w.request;
    next_session := w.session;
    if passed and w.request is not null then
        installed := leadergroup.install(
            release.key, w.session, w.request, w.owner_uid, w.owner_namespace, w.owner_name, w.reason, w.delay_ms,
            release.protocol, release.jump, release.reason, release.id
        ) is not null;
        if named and not installed then
            verdict := 'history';
            return;
        end if;
    end if;
    if release.own is null then
        old_request := r.grant_id;
        old_session := r.session;
    end if;
    if installed then
        -- Those before it are dead, but for an heir's; or they were passed over, and keep their places.
        delete from leadergroup.waiter as q
        where q.key = release.key
        and (q.id = w.id or q.id < w.id and not named and not exists (
            select from leadergroup.session as s where s.id = q.session and not s.dead
        ));
        perform leadergroup.queue_is_over(release.key);
    else
        update leadergroup.lock as l
        set owner_uid = null, owner_namespace = null, owner_name = null, session = null, grant_id = null,
            awaited = exists (select from leadergroup.waiter as q where q.key = release.key),
            lock_timestamp = clock_timestamp(),
            end_reason = release.reason, end_id = release.id
        where l.key = release.key;
    end if;
end
$$;

-- A waiter gives up. If it was its turn meanwhile, the token of its term comes back, which is then to be released.
create function leadergroup.give_up(own uuid, key text, request uuid) returns bigint
language plpgsql volatile
as $$
declare
    granted bigint;
begin
    perform from leadergroup.lock as l where l.key = give_up.key for no key update;
    delete from leadergroup.waiter as w where w.key = give_up.key and w.request = give_up.request;
    select l.token into granted from leadergroup.lock as l
    where l.key = give_up.key and l.session = give_up.own and l.grant_id = give_up.request;
    return granted;
end
$$;
