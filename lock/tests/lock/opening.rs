//! The queries on a new connection, and what happens when the server denies them.

use leadergroup_lock::Store;

use crate::cast::{TTL, session};
use crate::postgres::{Database, Server, database, migrated};

const DENY: &str = "revoke execute on function pg_control_system() from public";

/// Managed servers deny the function that returns their identifier; the timeline alone has to suffice.
#[tokio::test]
async fn a_server_that_does_not_tell_its_identifier_is_used_without() {
    let database = database().await;
    database.sql(DENY).await;
    let store = database.store();
    store.migrate().await.unwrap();
    assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
    store.read(&[]).await.unwrap();
    register_and_beat(&store).await;
    let known = "select count(*) from leadergroup.meta where history ~ '^unknown/[0-9A-F]{8}$'";
    assert_eq!(database.number(known).await, 1);
}

/// As Amazon Aurora refuses to tell its write position unless its `wal_level` is logical.
async fn refuse_timeline(database: &Database, code: &str) {
    database
        .sql(&format!(
            "alter function pg_catalog.pg_walfile_name(pg_lsn) rename to told_walfile_name;
             create function pg_catalog.pg_walfile_name(pg_lsn) returns text language plpgsql as
             $$ begin raise exception 'wal_level must be set to logical' using errcode = '{code}'; end $$",
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_tell_its_timeline_is_used_without() {
    let server = Server::start(&[("allow_system_table_mods", "on")]);
    let database = server.database().await;
    refuse_timeline(&database, "object_not_in_prerequisite_state").await;
    let store = database.store();
    store.migrate().await.unwrap();
    assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
    register_and_beat(&store).await;
    let known = "select count(*) from leadergroup.meta where history ~ '^[0-9]+/unknown$'";
    assert_eq!(database.number(known).await, 1);
}

/// Any other failure could hide a failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_to_tell_its_timeline_is_not_used() {
    let server = Server::start(&[("allow_system_table_mods", "on")]);
    for code in ["internal_error", "insufficient_privilege", "feature_not_supported"] {
        let database = server.database().await;
        refuse_timeline(&database, code).await;
        database.store().migrate().await.unwrap_err();
    }
    let database = server.database().await;
    refuse_timeline(&database, "object_not_in_prerequisite_state").await;
    database.sql(DENY).await;
    database.store().migrate().await.unwrap_err();
}

/// Denied only later, for instance after an upgrade of the server: that may be a failover.
#[tokio::test]
async fn a_server_that_tells_its_identifier_no_longer_begins_an_era() {
    let (database, store) = migrated().await;
    let era = store.register("replica", TTL, None, None).await.unwrap().1;
    database.sql(DENY).await;
    let store = database.store();
    assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
    assert_ne!(store.register("replica", TTL, None, None).await.unwrap().1, era);
    register_and_beat(&store).await;
}

/// Records, for each registration and heartbeat, which history its connection has cached.
async fn watch_histories(database: &Database) {
    database
        .sql(
            "create table public.noted (pid int, history text);
             create function public.note() returns trigger language plpgsql security definer as $$ begin
                 insert into public.noted values (pg_backend_pid(), current_setting('leadergroup.history', true));
                 return new;
             end $$;
             create trigger note before insert or update on leadergroup.session
             for each row execute function public.note()",
        )
        .await;
}

/// How many connections had cached the present history, and how many none.
async fn noted(database: &Database) -> (i64, i64) {
    let present = "select count(distinct pid) from public.noted where history = leadergroup.read_history()";
    let none = "select count(distinct pid) from public.noted where coalesce(history, '') = ''";
    (database.number(present).await, database.number(none).await)
}

async fn register_and_beat(store: &Store) {
    let own = session(store).await;
    assert!(store.beat(own, &[]).await.unwrap().alive);
}

#[tokio::test]
async fn a_connection_caches_the_history_of_its_server() {
    let (database, _) = migrated().await;
    watch_histories(&database).await;
    register_and_beat(&database.store()).await;
    assert_eq!(noted(&database).await, (2, 0), "one connection each for work and heartbeats");
}

#[tokio::test]
async fn a_connection_that_may_not_read_the_history_works_without() {
    let (database, _) = migrated().await;
    watch_histories(&database).await;
    // First the role may not call the function, then the function itself lacks privileges.
    database.sql("revoke execute on function leadergroup.read_history() from public, app").await;
    let refused = database.store();
    refused.check().await.unwrap();
    database
        .sql(
            "create or replace function leadergroup.read_history() returns text language plpgsql as $$ begin
                 raise insufficient_privilege;
             end $$;
             grant execute on function leadergroup.read_history() to public",
        )
        .await;
    let failing = database.store();
    for store in [refused, failing] {
        store.check().await.unwrap();
        store.read(&[]).await.unwrap();
    }
}

/// The server may be promoted while the connection lives, and then has another history.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_made_during_recovery_caches_no_history() {
    let primary = Server::start(&[]);
    let (database, _) = primary.migrated().await;
    watch_histories(&database).await;
    let standby = primary.standby();
    standby.launch();
    let copy = standby.database_called(&database.name);
    let store = copy.store();
    assert!(!store.check().await.unwrap().writable);
    let pid =
        "select coalesce(max(pid), 0)::bigint from pg_stat_activity where application_name = 'leadergroup'";
    let made = copy.number(pid).await;
    let mut admin = copy.admin().await;
    let asked = sqlx::query("select leadergroup.read_history()").execute(&mut admin).await;
    assert!(asked.is_err(), "a standby is not a server that tells no timeline");
    primary.kill();
    standby.psql("select pg_promote()");
    session(&store).await;
    let without =
        format!("select count(*) from public.noted where pid = {made} and coalesce(history, '') = ''");
    assert_eq!(copy.number(&without).await, 1, "the connection that was made during recovery");
}
