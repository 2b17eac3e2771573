-- Pruning: removes old history, idle keys, dead sessions and forgotten waiters in small steps. The Rust client and the
-- operator call these functions; `call leadergroup.prune()` does all of it, for pg_cron or any other client.

-- Whether pruning is due, for only one of the callers. If the last run is in the future, the server's clock has been
-- put back since.
create function leadergroup.begin_pruning(every_ms bigint) returns boolean
language plpgsql volatile
as $$
begin
    update leadergroup.meta set pruned_at = now()
    where pruned_at not between now() - begin_pruning.every_ms * interval '1 millisecond'
                        and now() + begin_pruning.every_ms * interval '1 millisecond';
    if not found then
        return false;
    end if;
    perform set_config('synchronous_commit', 'local', true);
    return true;
end
$$;

-- Of each of `page` keys after `after` ('' to begin), keeps the last `keep` terms. Removes at most `most` rows. Never
-- removes the last confirmed term or a later one. Goes from key to key along the index; if `removed` is `most`, there
-- may be more of the same keys.
create function leadergroup.prune_terms(
    after text, page bigint, keep bigint, most bigint, out last_key text, out removed bigint
)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    with keys as materialized (
        select key, confirmed_token from leadergroup.lock where key > prune_terms.after
        order by key limit prune_terms.page
    ),
    cut as materialized (
        select k.key,
               least(
                   k.confirmed_token,
                   coalesce((select t.token from leadergroup.term as t where t.key = k.key
                             order by t.token desc offset prune_terms.keep - 1 limit 1), 0)
               ) as oldest_kept
        from keys as k
    ),
    old as materialized (
        select t.key, t.token
        from cut as c cross join lateral (
            select t.key, t.token from leadergroup.term as t
            where t.key = c.key and t.token < c.oldest_kept order by t.token limit prune_terms.most
        ) as t
        limit prune_terms.most
    ),
    gone as (
        delete from leadergroup.term as t using old as o where t.key = o.key and t.token = o.token
        returning 1
    )
    select (select max(key) from keys), (select count(*) from gone) into last_key, removed;
end
$$;

-- Removes programs' keys, of `page` keys after `after` ('' to begin), that no one has held or waited for in `idle_ms`,
-- with their history; at most 100 of them. The deletion raises the floor of all later tokens (raise_token_floor), so a
-- key that is created again continues above every token it ever had.
create function leadergroup.prune_keys(
    after text, page bigint, idle_ms bigint, out last_key text, out removed bigint
)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    -- Each statement has to see the rows as they are once it has locked them.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'leadergroup.prune_keys: the transaction is %, not read committed',
            current_setting('transaction_isolation')
            using errcode = 'invalid_transaction_state',
                  hint = 'Run `set default_transaction_isolation = ''read committed''` before.';
    end if;
    with page as materialized (
        select key, session from leadergroup.lock where key > prune_keys.after order by key limit prune_keys.page
    ),
    idle as materialized (
        select l.key from page as p
        -- If a row has changed since the snapshot, PostgreSQL checks its own columns again, but not those of other
        -- tables: so its session must be the same.
        join leadergroup.lock as l on l.key = p.key and l.session is not distinct from p.session
        where l.group_id = leadergroup.programs()
        and l.lock_timestamp < now() - prune_keys.idle_ms * interval '1 millisecond'
        and (
            l.holder_uid is null and l.session is null and not l.awaited
            -- Its holder ended without a release, so long ago that its session has been removed. A row with a lock
            -- delay stays: those who request the key measure the delay, and need the row for it.
            or l.session is not null and l.delay_ms = 0 and not l.awaited
               and not exists (select from leadergroup.session as s where s.id = l.session)
               and not exists (select from leadergroup.waiter as w where w.key = l.key)
        )
        -- At most as many terms as one statement may remove; longer histories are shortened first.
        and (select count(*) from (
            select from leadergroup.term as t where t.key = l.key limit 101
        ) as terms) <= 100
        limit 100
        for update of l skip locked
    ),
    gone as (
        delete from leadergroup.lock as l using idle as i where l.key = i.key
        returning l.key
    ),
    forgotten as (
        delete from leadergroup.term as t using idle as i where t.key = i.key
    )
    select (select max(key) from page), (select count(*) from gone) into last_key, removed;
    -- Keys that count as awaited although the last waiter has died are idle at the next time. The function sees the queue
    -- as it is once the row is locked.
    perform leadergroup.note_whether_awaited(free.key) from (
        select l.key from leadergroup.lock as l
        where l.key > prune_keys.after and l.key <= prune_keys.last_key
        and l.awaited
        and not exists (select from leadergroup.waiter as w where w.key = l.key)
        for no key update of l skip locked
    ) as free;
end
$$;

-- Removes at most `most` sessions that died more than `dead_ms` ago. A lock row that still names one is as free as if it
-- named a dead one, except for a lock delay: a session without a row counts as ended uncleanly.
create function leadergroup.prune_sessions(dead_ms bigint, most bigint, out removed bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    with gone as (
        delete from leadergroup.session as s
        where s.id in (
            select d.id from leadergroup.session as d
            where d.dead and d.dead_at < now() - prune_sessions.dead_ms * interval '1 millisecond'
            order by d.id
            limit prune_sessions.most
            for update skip locked
        )
        returning s.id
    )
    select count(*) into removed from gone;
end
$$;

-- Removes at most `most` places in queues whose session is dead or removed. Most are removed in passing; this is for
-- keys that are no longer requested. Deletes in the same order as an acquisition, so that the two cannot deadlock; a
-- locked row is left for the next time.
create function leadergroup.prune_waiters(most bigint, out removed bigint)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    with forgotten as materialized (
        select w.key, w.id from leadergroup.waiter as w
        where not exists (select from leadergroup.session as s where s.id = w.session and not s.dead)
        order by w.key, w.id
        limit prune_waiters.most
        for update of w skip locked
    ),
    gone as (
        delete from leadergroup.waiter as w using forgotten as f where w.key = f.key and w.id = f.id
        returning 1
    )
    select count(*) into removed from gone;
end
$$;

-- All of it, with a commit after each step: it must not be called in a transaction. It may be stopped and repeated at
-- any time, and run beside others.
create procedure leadergroup.prune(
    keep_terms bigint default 50, idle_keys interval default '7 days', dead_sessions interval default '1 hour'
)
language plpgsql
as $$
declare
    page constant bigint := 500;
    most_terms constant bigint := 10000;
    idle_ms constant bigint := extract(epoch from idle_keys) * 1000;
    dead_ms constant bigint := extract(epoch from dead_sessions) * 1000;
    after text := '';
    step record;
begin
    while after is not null loop
        step := leadergroup.prune_terms(after, page, greatest(keep_terms, 1), most_terms);
        commit;
        continue when step.removed >= most_terms;
        after := step.last_key;
    end loop;
    after := '';
    while after is not null loop
        step := leadergroup.prune_keys(after, page, idle_ms);
        commit;
        continue when step.removed >= 100;
        after := step.last_key;
    end loop;
    while leadergroup.prune_waiters(page) >= page loop
        commit;
    end loop;
    commit;
    while leadergroup.prune_sessions(dead_ms, page) >= page loop
        commit;
    end loop;
end
$$;

comment on procedure leadergroup.prune(bigint, interval, interval) is
    'Removes old history, idle keys, dead sessions and forgotten waiters, with a commit after each step.';
