-- Fencing: an application's transaction proves that it belongs to the present term, and no later term begins before that
-- transaction has ended. docs/fencing.md explains the mechanism and why it is not a row lock.

-- Known to be fenced: whoever changes the token takes the key's advisory lock, so that fenced transactions need no lock on
-- the row. Only short transactions of ours set it. A fence that finds it unset locks the row as well, which is always
-- right but costs more.
alter table leadergroup.lock add column fenced boolean not null default false;

-- The advisory lock that belongs to a key. 64 bits: two keys with the same one are not to be expected, and would only
-- wait for each other.
create function leadergroup.fence_id(key text) returns bigint
language sql immutable strict parallel safe
return pg_catalog.hashtextextended(key, 7810769283150411335);

create function leadergroup.fence(key text, token bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    found_token bigint;
    found_fenced boolean;
    found_holder boolean;
begin
    if fence.key is null or fence.token is null then
        raise exception 'leadergroup.fence: key and token must not be null' using errcode = 'null_value_not_allowed';
    end if;
    -- Shared among the transactions of a holder; a change of token needs it for itself. Waits behind a change that is
    -- already waiting, so that a stream of transactions cannot keep the change off.
    perform pg_advisory_xact_lock_shared(leadergroup.fence_id(fence.key));
    -- A statement of its own, hence at READ COMMITTED a snapshot that was taken after the lock.
    select l.token, l.fenced, l.owner_uid is not null into found_token, found_fenced, found_holder
    from leadergroup.lock as l where l.key = fence.key;
    -- With an older snapshot the row may be outdated: only locking it tells. FOR KEY SHARE keeps nobody off but those
    -- who change the token.
    if not found_fenced or current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        select l.token, l.owner_uid is not null into found_token, found_holder
        from leadergroup.lock as l where l.key = fence.key
        for key share;
    end if;
    if found_token is distinct from fence.token or not found_holder then
        raise exception 'leadergroup.fence: token % is not the current one of key "%"', fence.token, fence.key
            using errcode = 'LG001',
                  detail = case
                      when found_token is null then 'The key is unknown.'
                      when found_token = fence.token then 'Its term has ended, and nobody holds the key.'
                      else format('The current token is %s.', found_token)
                  end,
                  hint = 'Another holder may be at work: roll back, and do not try again with this token.';
    end if;
end
$$;

comment on function leadergroup.fence(text, bigint) is
    'To be called first in a transaction: raises LG001 unless the token is the current one of the key, and keeps the '
    'next holder from taking over before this transaction has ended.';

-- Makes fences of the key cheaper from now on. To be called in a transaction of its own.
create function leadergroup.fence_enable(key text) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    update leadergroup.lock as l set fenced = true where l.key = fence_enable.key and not l.fenced;
end;

comment on function leadergroup.fence_enable(text) is
    'Makes leadergroup.fence cheaper for a key that is fenced often. To be called once, in a transaction of its own.';

-- Waits until all fenced transactions of the key have ended, and keeps new ones waiting until the caller's transaction
-- ends: `open`. Those that have not ended after $2 ms, and those that began in the meantime, are ended by force, which is
-- given $3 ms, twice; not at all if $3 is NULL. If that does not help: `closed`; if the role may not do it: `forbidden`.
create function leadergroup.fence_pass(key text, patience_ms integer, force_ms integer) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    id constant bigint := leadergroup.fence_id(fence_pass.key);
    before constant text := current_setting('lock_timeout');
    patience integer := greatest(fence_pass.patience_ms, 1);
begin
    for round in 1..3 loop
        begin
            perform set_config('lock_timeout', patience || 'ms', true);
            perform pg_advisory_xact_lock(id);
            perform set_config('lock_timeout', before, true);
            return 'open';
        exception when lock_not_available then
            -- The setting is as before: it went with the inner transaction.
            null;
        end;
        exit when fence_pass.force_ms is null;
        -- Those that wait have written nothing under this fence, and must not get in before us.
        begin
            perform pg_terminate_backend(l.pid)
            from pg_locks as l
            where l.locktype = 'advisory' and l.mode = 'ShareLock' and l.objsubid = 1
            and l.database = (select d.oid from pg_database as d where d.datname = current_database())
            and (l.classid::bigint << 32 | l.objid::bigint) = id
            and l.pid <> pg_backend_pid();
        exception when insufficient_privilege then
            return 'forbidden';
        end;
        patience := greatest(fence_pass.force_ms, 1);
    end loop;
    return 'closed';
end
$$;

-- Whatever program or person changes the token: not back, for what was given out would be given out again, and if the key is
-- fenced not past a fenced transaction.
create function leadergroup.token_guard() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if new.token < old.token then
        raise exception 'the token of key "%" must not go back from % to %', old.key, old.token, new.token
            using errcode = 'check_violation', hint = 'Tokens are never given out twice: leave it, or make it larger.';
    end if;
    if not pg_try_advisory_xact_lock(leadergroup.fence_id(old.key)) then
        raise exception 'a fenced transaction of key "%" is under way', old.key
            using errcode = 'lock_not_available', hint = 'Try again when it has ended.';
    end if;
    return new;
end
$$;

create trigger token_guard before update of token on leadergroup.lock
for each row when (
    new.token < old.token or old.fenced and old.token <> new.token and new.owner_uid is not null
)
execute function leadergroup.token_guard();

-- A row that is put back, from a dump for one, goes on from what was granted since then, as far as the history knows.
create function leadergroup.token_put_back() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    new.token := greatest(new.token, (select max(t.token) from leadergroup.term as t where t.key = new.key));
    return new;
end
$$;

create trigger token_put_back before insert on leadergroup.lock
for each row when (new.token > 0)
execute function leadergroup.token_put_back();
