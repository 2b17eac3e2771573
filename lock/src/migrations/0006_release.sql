-- How a program's key becomes free, or passes to the next waiter.

-- Ends the holder's term. The key goes to the first living waiter, or to the named successor, wherever it stands in the
-- queue; the other waiters keep their places. If no waiter can get the key at once (a fenced transaction of this term
-- is under way, or the era is in quarantine), the key becomes free, and the first waiter will look again. The caller
-- has locked the row; `passed` says whether FOR UPDATE and with the fence passed. Returns the request and the session
-- to wake. With a named successor, nothing is done unless it gets the key.
create function leadergroup.hand_on(
    key text, reason text, passed boolean, successor_uid text, successor_name text,
    out next_grant uuid, out next_session uuid, out installed boolean
)
language plpgsql volatile
as $$
declare
    named constant boolean := hand_on.successor_uid is not null or hand_on.successor_name is not null;
    w record;
begin
    -- A session that is being marked dead at this moment is skipped: its row would have to be waited for.
    select q.* into w
    from leadergroup.waiter as q join leadergroup.session as s on s.id = q.session
    where q.key = hand_on.key and not s.dead
    and (hand_on.successor_uid is null or q.holder_uid = hand_on.successor_uid)
    and (hand_on.successor_name is null or q.holder_name = hand_on.successor_name)
    order by q.id limit 1
    for key share of s skip locked;
    next_grant := w.grant_id;
    next_session := w.session;
    installed := hand_on.passed and w.grant_id is not null and leadergroup.begin_term(
        hand_on.key, w.session, w.grant_id, w.holder_uid, w.holder_namespace, w.holder_name, w.reason, w.delay_ms,
        hand_on.reason
    ) is not null;
    if named and not installed then
        return;
    end if;
    if installed then
        -- Without a named successor, the waiters before this one are dead, or were skipped and keep their places.
        delete from leadergroup.waiter as q
        where q.key = hand_on.key
        and (q.id = w.id or q.id < w.id and not named and not exists (
            select from leadergroup.session as s where s.id = q.session and not s.dead
        ));
    else
        update leadergroup.lock as l
        set holder_uid = null, holder_namespace = null, holder_name = null, session = null, grant_id = null,
            lock_timestamp = clock_timestamp(), end_reason = hand_on.reason
        where l.key = hand_on.key;
    end if;
    perform leadergroup.note_whether_awaited(hand_on.key);
end
$$;

-- Ends a term that a program holds, if the token is still the same: for its own session, or by force (`session` is
-- NULL). By force, a group's key also loses its holder and the session that claimed it. A repeated call whose answer
-- was lost is recognised by the reason with which the term ended.
create function leadergroup.end_hold(
    session uuid, key text, token bigint, reason text, successor_uid text default null, successor_name text default null,
    out verdict text, out next_grant uuid, out next_session uuid, out group_id text, out protocol integer,
    out blockers text
)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    named constant boolean := successor_uid is not null or successor_name is not null;
    forced constant boolean := session is null;
    fence constant bigint := leadergroup.fence_id(key);
    l record;
    passed boolean;
    next record;
begin
    if forced then
        -- A release by force does not wait for a change that is under way: the person looks at its result and tries
        -- again.
        perform from leadergroup.lock as r where r.key = end_hold.key for no key update skip locked;
        if not found and exists (select from leadergroup.lock as r where r.key = end_hold.key) then
            verdict := 'busy';
            return;
        end if;
    else
        perform from leadergroup.session as s where s.id = session and not s.dead for key share;
        if not found then
            verdict := 'dead';
            return;
        end if;
    end if;
    passed := pg_try_advisory_xact_lock(fence);
    if passed then
        select r.* into l from leadergroup.lock as r where r.key = end_hold.key for update;
    else
        select r.* into l from leadergroup.lock as r where r.key = end_hold.key for no key update;
    end if;
    group_id := l.group_id;
    protocol := l.protocol;
    verdict := case
        when l.key is null then 'missing'
        when l.protocol > 1 then 'newer'
        when l.tombstone then 'tombstone'
        when l.group_id <> leadergroup.programs() and not forced then 'foreign'
        when l.token <> token or l.session is distinct from session and not forced then 'changed'
        when l.holder_uid is null then case when forced then 'free' else 'changed' end
        when named and not passed then 'busy'
        else 'done'
    end;
    if verdict in ('changed', 'free') and exists (
        select from leadergroup.term as t
        where t.key = end_hold.key and t.token = end_hold.token and t.end_reason = reason
        and (forced or t.session = end_hold.session)
    ) then
        -- A repeated call. The next holder may not have been woken yet.
        verdict := 'done';
        next_grant := l.grant_id;
        next_session := l.session;
        return;
    end if;
    if verdict <> 'done' then
        blockers := case verdict when 'busy' then leadergroup.fence_blockers(fence) end;
        return;
    end if;
    if forced then
        -- The session learns it with its next heartbeat.
        update leadergroup.session as s set revoked = s.revoked + 1 where s.id = l.session and not s.dead;
    end if;
    if l.group_id <> leadergroup.programs() then
        update leadergroup.lock as r
        set holder_uid = null, holder_namespace = null, holder_name = null, session = null, grant_id = null,
            lock_timestamp = clock_timestamp(), end_reason = reason
        where r.key = end_hold.key;
        return;
    end if;
    next := leadergroup.hand_on(key, reason, passed, successor_uid, successor_name);
    next_grant := next.next_grant;
    next_session := next.next_session;
    if named and not next.installed then
        verdict := case when next_grant is null then 'no-successor' else 'busy' end;
    end if;
end
$$;

-- Releases keys. `releases` is an array of objects with key, token and reason. In a call with several, keys that have
-- waiters, and those that cannot be released as requested, have no row in the answer, and must be released one by one.
-- Verdicts:
--   done, with the request and the session of the next holder, which the caller has to wake (leadergroup.wake)
--   changed: the session does not hold the key under this token      dead: the caller's session is dead
--   missing, tombstone, foreign, newer: not a key that a program could hold
create function leadergroup.release(session uuid, releases jsonb)
returns table (
    place bigint, verdict text, next_grant uuid, next_session uuid, group_id text, protocol integer, blockers text
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    count constant integer := jsonb_array_length(release.releases);
    q record;
begin
    return query
    with held as materialized (
        select l.ctid as id, r.reason, r.place
        from (
            select p.* from rows from (jsonb_to_recordset(release.releases) as (key text, token bigint, reason text))
                with ordinality as p (key, token, reason, place)
            -- The limit removes none. It tells the planner that there are few, so that it looks the rows up one by one.
            limit count
        ) as r
        join leadergroup.lock as l on l.key = r.key collate "C"
        where l.session = release.session and l.token = r.token and l.holder_uid is not null and r.reason is not null
        and not l.awaited and l.group_id = leadergroup.programs() and not l.tombstone and l.protocol <= 1
        and exists (select from leadergroup.session as s where s.id = release.session and not s.dead)
        for no key update of l skip locked
    )
    update leadergroup.lock as l
    set holder_uid = null, holder_namespace = null, holder_name = null, session = null, grant_id = null,
        lock_timestamp = clock_timestamp(), end_reason = h.reason
    from held as h
    -- A row that changed since the snapshot is locked, but does not match here; it is released alone.
    where l.ctid = h.id
    returning h.place, 'done', null::uuid, null::uuid, null::text, null::integer, null::text;
    if found or count <> 1 then
        return;
    end if;
    select r.* into q from jsonb_to_record(release.releases -> 0) as r (key text, token bigint, reason text);
    if num_nulls(q.key, q.token, q.reason) > 0 then
        raise exception 'leadergroup.release: key, token and reason are required'
            using errcode = 'null_value_not_allowed';
    end if;
    if release.session is null then
        -- To leadergroup.end_hold, no session means a release by force, which would end any holder's term.
        return query select 1::bigint, 'dead', null::uuid, null::uuid, null::text, null::integer, null::text;
        return;
    end if;
    return query select 1::bigint, e.* from leadergroup.end_hold(release.session, q.key, q.token, q.reason) as e;
end
$$;

comment on function leadergroup.release(uuid, jsonb) is 'Releases keys that the session holds under these tokens.';

-- Gives a request up: its place in the queue is removed, and if it has been granted meanwhile, the key is released.
-- Returns the request and the session to wake. Waits for changes of the key that are under way; afterwards, and once
-- the request is void, it can have no effect any more.
create function leadergroup.give_up(
    session uuid, key text, grant_id uuid, out next_grant uuid, out next_session uuid
)
language plpgsql volatile
as $$
#variable_conflict use_variable
declare
    granted bigint;
    next record;
begin
    perform from leadergroup.lock as l where l.key = give_up.key for no key update;
    if not found then
        -- A row whose creation has not been committed is invisible; inserting the same key waits for it.
        insert into leadergroup.lock (key, group_id) values (give_up.key, leadergroup.programs())
        on conflict on constraint lock_pkey do nothing;
        perform from leadergroup.lock as l where l.key = give_up.key for no key update;
    end if;
    delete from leadergroup.waiter as w
    where w.key = give_up.key and w.grant_id = give_up.grant_id and w.session = give_up.session;
    select l.token into granted from leadergroup.lock as l
    where l.key = give_up.key and l.session = give_up.session and l.grant_id = give_up.grant_id;
    if found then
        next := leadergroup.end_hold(session, key, granted, 'no longer wanted');
        next_grant := next.next_grant;
        next_session := next.next_session;
    end if;
end
$$;
