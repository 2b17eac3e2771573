-- The table of fenced-writer.yaml, in the database of the lock: leadergroup.fence can be called only there. Run it as a
-- superuser, or as the owner of the database with the right to create roles:
--
--   psql -d leadergroup -v password="'...'" -f fenced-writer.sql
create role ledger login password :password;
create schema ledger authorization ledger;
create table ledger.entry (
    id bigint generated always as identity primary key,
    token bigint not null,
    pod text not null,
    amount integer not null
);
alter table ledger.entry owner to ledger;
-- The right to call leadergroup.fence, and no other.
grant usage on schema leadergroup to ledger;
-- The operator may end a transaction of this role that would delay a change of holder for more than half a second.
grant ledger to leadergroup;
