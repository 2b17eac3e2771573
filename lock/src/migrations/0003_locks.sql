-- Locks, the history of their terms, and the two rules on which everything rests: which token is next, and what is
-- written when a term ends. Every text that identifies something is compared byte by byte (collate "C"): an index in
-- the database's own collation can miss rows after an upgrade of the C library, and a second row for a key is a second
-- holder.

-- One row for each key. No index but the primary key, so that every change of a row is a heap-only update; a page has
-- room for a second version of each of its rows, even though they get longer with their first holder.
create table leadergroup.lock (
    key text collate "C" primary key,
    -- The LeaderGroup that the key belongs to, or leadergroup.programs().
    group_id text collate "C" not null,
    -- The session that may change the row. Its claim expires with it.
    session uuid,
    -- The largest token ever granted.
    token bigint not null default 0,
    era bigint not null default 0,
    -- Identifies the grant of the present term, so that a repeated request is recognised.
    grant_id uuid,
    holder_uid text collate "C",
    holder_namespace text collate "C",
    holder_name text collate "C",
    reason text collate "C",
    -- The last confirmed term: everything that makes its holder act has been done. Holders of this term and of later
    -- ones may still act.
    confirmed_token bigint not null default 0,
    tombstone boolean not null default false,
    protocol integer not null default 1,
    -- The lock delay: how long no one gets the key after the holder's session was marked dead. Those who request the
    -- key measure it themselves.
    delay_ms bigint not null default 0,
    -- Whether there may be waiters. Set and cleared under the row's lock.
    awaited boolean not null default false,
    -- When the holder last changed.
    lock_timestamp timestamptz not null default clock_timestamp(),
    -- Why the last term ended.
    end_reason text collate "C",
    -- A longer key may fit into the index of the locks and not into that of the terms: its first term could not end.
    constraint key_of_1_to_2000_bytes check (octet_length(key) between 1 and 2000),
    constraint sound check (
        (holder_uid is null) = (holder_namespace is null) and (holder_uid is null) = (holder_name is null)
        and (not tombstone or holder_uid is null)
    )
) with (fillfactor = 25);

-- The terms that have ended, until they are pruned. The present term is in the lock's row.
create table leadergroup.term (
    key text collate "C" not null,
    token bigint not null,
    grant_id uuid,
    group_id text collate "C" not null,
    session uuid,
    holder_uid text collate "C" not null,
    holder_namespace text collate "C" not null,
    holder_name text collate "C" not null,
    reason text collate "C",
    granted_at timestamptz not null,
    confirmed boolean not null,
    ended_at timestamptz not null,
    end_reason text collate "C",
    primary key (key, token)
);

create view leadergroup.terms as
select key, token, grant_id, group_id, session, holder_uid, holder_namespace, holder_name, reason, granted_at, confirmed,
       ended_at, end_reason
from leadergroup.term
union all
select key, token, grant_id, group_id, session, holder_uid, holder_namespace, holder_name, reason, lock_timestamp,
       confirmed_token = token, null, null
from leadergroup.lock
where holder_uid is not null;

-- The group id of all keys that programs hold directly.
create function leadergroup.programs() returns text language sql immutable return 'held by programs';

-- The next token of a key: above the row's, above all in the history, above the caller's floor, in a new era above all
-- tokens that may have been granted and lost, and for a new row above the tokens of all rows that were ever deleted.
create function leadergroup.next_token(
    token bigint, era bigint, last_in_history bigint, floor bigint, present leadergroup.meta
) returns bigint
language sql immutable
return 1 + greatest(
    token + case when era <> (present).era then greatest((present).era - era, 1) * 1000000 else 0 end,
    (present).era * 1000000,
    last_in_history,
    floor,
    case when token = 0 then (present).token_floor else 0 end
);

-- Every term that ends enters the history, no matter what ended it.
create function leadergroup.end_term() returns trigger
language plpgsql
as $$
begin
    insert into leadergroup.term
        (key, token, grant_id, group_id, session, holder_uid, holder_namespace, holder_name, reason, granted_at,
         confirmed, ended_at, end_reason)
    values
        (old.key, old.token, old.grant_id, old.group_id, old.session, old.holder_uid, old.holder_namespace,
         old.holder_name, old.reason, old.lock_timestamp, old.confirmed_token = old.token, new.lock_timestamp,
         new.end_reason)
    -- If a row was restored together with its holder, the history may contain the term already. It must still be
    -- possible to end it.
    on conflict on constraint term_pkey do nothing;
    return null;
end
$$;

create trigger end_term after update on leadergroup.lock
for each row when (old.holder_uid is not null and (new.holder_uid is null or new.token <> old.token))
execute function leadergroup.end_term();

-- Tokens never go back, not even by hand: otherwise a token could be granted twice.
create function leadergroup.keep_token() returns trigger
language plpgsql
as $$
begin
    if tg_op = 'UPDATE' then
        raise exception 'the token of key "%" must not go back from % to %', old.key, old.token, new.token
            using errcode = 'check_violation', hint = 'A token is never granted twice: keep or increase it.';
    end if;
    -- A row that is restored, for instance from a dump.
    new.token := greatest(
        new.token,
        (select max(t.token) from leadergroup.term as t where t.key = new.key),
        (select m.token_floor from leadergroup.meta as m)
    );
    return new;
end
$$;

create trigger keep_token_of_row before update of token on leadergroup.lock
for each row when (new.token < old.token) execute function leadergroup.keep_token();

create trigger keep_token_of_new_row before insert on leadergroup.lock
for each row when (new.token > 0) execute function leadergroup.keep_token();

create function leadergroup.raise_token_floor() returns trigger
language plpgsql
as $$
begin
    update leadergroup.meta as m set token_floor = gone.token
    from (select max(token) as token from deleted) as gone
    where m.token_floor < gone.token;
    if found then
        -- As in leadergroup.present_era(), which would wait for this row in a new history. A failover that loses this
        -- change loses the deletion with it.
        perform set_config('synchronous_commit', 'local', true);
    end if;
    return null;
end
$$;

create trigger raise_token_floor after delete on leadergroup.lock referencing old table as deleted
for each statement execute function leadergroup.raise_token_floor();

-- Without the rows, no deletion would raise the floor; without the sessions, all of them would count as dead.
create function leadergroup.refuse_truncate() returns trigger
language plpgsql
as $$
begin
    raise exception 'the table %.% must not be truncated', tg_table_schema, tg_table_name
        using errcode = 'object_not_in_prerequisite_state',
            hint = 'Tokens would be granted twice. To remove keys, delete their rows while no program holds them.';
end
$$;

create trigger refuse_truncate before truncate on leadergroup.lock
for each statement execute function leadergroup.refuse_truncate();
create trigger refuse_truncate before truncate on leadergroup.session
for each statement execute function leadergroup.refuse_truncate();
create trigger refuse_truncate before truncate on leadergroup.meta
for each statement execute function leadergroup.refuse_truncate();

-- The triggers fire also where replication or a restore would suppress them.
alter table leadergroup.lock enable always trigger end_term;
alter table leadergroup.lock enable always trigger keep_token_of_row;
alter table leadergroup.lock enable always trigger keep_token_of_new_row;
alter table leadergroup.lock enable always trigger raise_token_floor;
alter table leadergroup.lock enable always trigger refuse_truncate;
alter table leadergroup.session enable always trigger refuse_truncate;
alter table leadergroup.meta enable always trigger refuse_truncate;
