-- Fencing: an application's transaction proves that it belongs to the present term, and no later term begins before
-- that transaction has ended. docs/fencing.md explains the mechanism and why it is not a row lock.

-- The number of a key's advisory lock, of 64 bits. If two keys have the same number, they only wait for each other.
create function leadergroup.fence_id(key text) returns bigint
language sql immutable strict parallel safe
return pg_catalog.hashtextextended(key, 7810769283150411335);

create function leadergroup.fence(key text, token bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    found_token bigint;
    found_holder boolean;
begin
    if fence.key is null or fence.token is null then
        raise exception 'leadergroup.fence: key and token must not be null' using errcode = 'null_value_not_allowed';
    end if;
    -- Shared among the transactions of a holder; a change of holder needs it exclusively. Waits behind a change that is
    -- already waiting, so that a stream of transactions cannot hold the change up.
    perform pg_advisory_xact_lock_shared(leadergroup.fence_id(fence.key));
    if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
        -- A separate statement, so that its snapshot is taken after the lock.
        select l.token, l.holder_uid is not null into found_token, found_holder
        from leadergroup.lock as l where l.key = fence.key;
    else
        -- The snapshot may be older than the lock: only locking the row shows whether the snapshot has its latest
        -- version. FOR KEY SHARE conflicts with nothing but a change of holder.
        select l.token, l.holder_uid is not null into found_token, found_holder
        from leadergroup.lock as l where l.key = fence.key
        for key share;
    end if;
    if found_token is distinct from fence.token or not found_holder then
        raise exception 'leadergroup.fence: token % is not the current one of key "%"', fence.token, fence.key
            using errcode = 'LG001',
                  detail = case
                      when found_token is null then 'The key is unknown.'
                      when found_token = fence.token then 'Its term has ended, and the key has no holder.'
                      else format('The current token is %s.', found_token)
                  end,
                  hint = 'Another holder may be active: roll back, and do not try again with this token.';
    end if;
end
$$;

comment on function leadergroup.fence(text, bigint) is
    'Call it first in a transaction: raises LG001 unless the token is the current one of the key, and keeps the '
    'next holder from taking over before this transaction has ended.';

-- No program and no person can change the token of a held key while a fenced transaction is under way. The functions of
-- this schema already hold the advisory lock when this runs.
create function leadergroup.keep_fence() returns trigger
language plpgsql
as $$
begin
    if not pg_try_advisory_xact_lock(leadergroup.fence_id(old.key)) then
        raise exception 'a fenced transaction of key "%" is under way', old.key
            using errcode = 'lock_not_available', hint = 'Try again when it has ended.';
    end if;
    return new;
end
$$;

create trigger keep_fence before update of token on leadergroup.lock
for each row when (new.token > old.token and new.holder_uid is not null) execute function leadergroup.keep_fence();
alter table leadergroup.lock enable always trigger keep_fence;

-- Describes the holders of a key's advisory lock. Any role of the database can take any advisory lock, so a holder need
-- not be a fenced transaction.
create function leadergroup.fence_blockers(id bigint) returns text
language sql volatile
begin atomic
    select string_agg(
        format('process %s of role %s (%s)', l.pid, coalesce(a.usename, 'unknown'),
               case l.mode when 'ShareLock' then 'a fenced transaction' else 'an advisory lock held exclusively' end),
        ', ' order by l.pid
    )
    from pg_catalog.pg_locks as l
    left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and l.pid <> pg_catalog.pg_backend_pid()
    and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
    and (l.classid::bigint << 32 | l.objid::bigint) = fence_blockers.id;
end;

-- Waits until all fenced transactions of the key have ended, then keeps new ones waiting until the caller's transaction
-- ends. Transactions that have not ended after `patience_ms`, and those that began in the meantime, are terminated;
-- then this waits for `force_ms`, at most twice. If `force_ms` is NULL, none is terminated. Outcomes:
--   open: all have ended      closed: some have not      forbidden: this role may not terminate them
-- `blockers` describes those that have not ended.
create function leadergroup.fence_pass(
    key text, patience_ms integer, force_ms integer, out outcome text, out blockers text
)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    id constant bigint := leadergroup.fence_id(fence_pass.key);
    before constant text := current_setting('lock_timeout');
    patience integer := greatest(fence_pass.patience_ms, 1);
begin
    outcome := 'closed';
    for round in 1..3 loop
        begin
            perform set_config('lock_timeout', patience || 'ms', true);
            perform pg_advisory_xact_lock(id);
            perform set_config('lock_timeout', before, true);
            outcome := 'open';
            return;
        exception when lock_not_available then
            -- The setting has its former value again: the inner transaction was rolled back.
            null;
        end;
        exit when fence_pass.force_ms is null;
        -- Also those that still wait for the lock: they have written nothing under this fence, and must not get it
        -- first.
        begin
            perform pg_terminate_backend(l.pid)
            from pg_locks as l
            where l.locktype = 'advisory' and l.mode = 'ShareLock' and l.objsubid = 1
            and l.database = (select d.oid from pg_database as d where d.datname = current_database())
            and (l.classid::bigint << 32 | l.objid::bigint) = id
            and l.pid <> pg_backend_pid();
        exception when insufficient_privilege then
            outcome := 'forbidden';
            exit;
        end;
        patience := greatest(fence_pass.force_ms, 1);
    end loop;
    blockers := leadergroup.fence_blockers(id);
end
$$;
