//! A synchronous standby that is away: each COMMIT hangs where no timeout of the server applies, and takes effect when
//! the standby is given up.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, ClientError, DatabaseConfig, LockError, Store, Token,
    admin::Retention,
    protocol::{AcquireRequest, Wait},
};
use tokio::time::timeout;

use crate::cast::{TTL, grant, holder, key, take};
use crate::postgres::{DEADLINE, Database, Server, eventually};

async fn beats(database: &Database) -> i64 {
    database.number("select max(beat) from leadergroup.session").await
}

/// For a key that has a row, and for one that has none yet.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_while_commits_hang_is_free_afterwards() {
    let server = Server::start(&[]);
    let (database, _) = server.migrated().await;
    let (ttl, retry_interval) = (Duration::from_hours(1), Duration::from_millis(100));
    let limit = DatabaseConfig { statement_timeout: Duration::from_secs(2), ..database.config() };
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    let client = Client::connect(Store::new(&limit).unwrap(), config).await.unwrap();
    // Through another client, with longer time limits for a slow machine.
    let patient = Client::connect(database.store(), ClientConfig::default()).await.unwrap();
    for name in ["tried before", "waited for before"] {
        let _ = patient.try_lock(&key(name)).await.unwrap().unwrap().release().await.unwrap();
    }
    patient.shutdown().await.unwrap();

    server.psql("alter system set synchronous_standby_names = 'nobody'");
    server.psql("select pg_reload_conf()");
    let hanging = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    for name in ["tried", "tried before", "waited for", "waited for before"] {
        let before = database.number(hanging).await;
        // Repeated, because the new setting may not be in effect yet, or the time may be over before the request is
        // sent on a busy machine.
        eventually(&format!("the commit of {name:?} hangs"), async || {
            let answer = match name {
                "tried" | "tried before" => client.try_lock(&key(name)).await.map(drop),
                _ => client.lock(&key(name), Duration::from_secs(1)).await.map(drop),
            };
            let in_time = matches!(
                answer,
                Ok(()) | Err(ClientError::Lock(LockError::Timeout { .. }) | ClientError::Deadline { .. })
            );
            assert!(in_time, "{answer:?}");
            database.number(hanging).await > before
        })
        .await;
    }
    // The requests are void by then, and have been given up.
    let before = beats(&database).await;
    eventually("a long time passes", async || beats(&database).await > before + 60).await;
    assert!(database.number(hanging).await >= 4);
    server.psql("alter system reset synchronous_standby_names");
    server.psql("select pg_reload_conf()");
    eventually("no commit hangs any more", async || database.number(hanging).await == 0).await;
    eventually("all have come and gone", async || {
        let granted = "select count(*) from leadergroup.terms where holder_name = 'unnamed'";
        let held = "select count(*) from leadergroup.lock where holder_uid is not null";
        database.number(granted).await >= 6 && database.number(held).await == 0
    })
    .await;
    for name in ["tried", "tried before", "waited for", "waited for before"] {
        let guard = client.lock(&key(name), Duration::from_mins(1)).await.unwrap();
        assert!(guard.token() > Token::new(1));
    }
}

/// The first statement of a new era, whichever it is, delays no heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_era_begins_while_commits_hang() {
    let server = Server::start(&[]);
    let (database, _) = server.migrated().await;
    let limit = DatabaseConfig { statement_timeout: Duration::from_secs(2), ..database.config() };
    let store = Store::new(&limit).unwrap();
    let (own, era) = store.register("replica", TTL, None, None).await.unwrap();
    for name in ["a", "b"] {
        take(&store, own, &key(name)).await;
    }
    let wish = |name| AcquireRequest::new(key(name), holder("p1"), "test");
    store.acquire(own, &wish("idle"), Wait::No).await.unwrap();
    store.release(own, &key("idle"), Token::new(1), "done").await.unwrap();
    server.psql("alter system set synchronous_standby_names = 'nobody'");
    server.psql("select pg_reload_conf()");
    let hangs = async |name: &str| {
        let granted = store.grant(own, grant(&key(name), 0, "p0")).await;
        matches!(granted, Err(LockError::Timeout { .. }))
    };
    eventually("the new setting is in effect", async || hangs("a").await).await;
    let idle = Retention { idle_keys: Duration::ZERO, ..Retention::default() };
    let mut eras = vec![era];
    for first in ["a grant", "a request", "a question", "a pruning", "a registration"] {
        let another = "set synchronous_commit = local; update leadergroup.meta set history = 'another one'";
        database.sql(another).await;
        // Changes of rows still hang.
        match first {
            "a grant" => assert!(hangs("b").await),
            "a request" => drop(store.acquire(own, &wish("d"), Wait::InQueue).await),
            "a question" => drop(store.acquire(own, &wish("e"), Wait::No).await),
            "a pruning" => drop(store.prune(idle).await),
            _ => drop(store.register("another", TTL, None, None).await),
        }
        // Repeated, because even connecting may take too long on a busy machine.
        eventually(&format!("a heartbeat gets through after {first}"), async || {
            let beat = store.beat(own, &[]).await;
            beat.is_ok_and(|beat| beat.alive && beat.quarantine.is_some() && !eras.contains(&beat.era))
        })
        .await;
        eras.push(store.beat(own, &[]).await.unwrap().era);
    }
    // Old files were put back, and the standby, which is ahead of them, cannot follow.
    let lost = "select leadergroup.commits_were_lost(era_id) from leadergroup.meta";
    timeout(DEADLINE, database.sql(lost)).await.expect("it does not wait for the standby");
    assert!(!eras.contains(&store.beat(own, &[]).await.unwrap().era));
}

/// The standby was promoted, and two programs reach only the former primary. Nothing ends the lease of the one whose
/// heartbeats do not wait for standbys.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_wait_for_the_standby_end_with_it() {
    const TTL: Duration = Duration::from_secs(5);
    let primary = Server::start(&[]);
    let (before, _store) = primary.migrated().await;
    let standby = primary.standby();
    standby.launch();
    primary.psql("alter system set synchronous_standby_names = '*'");
    primary.psql("select pg_reload_conf()");
    let synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'";
    eventually("the standby is synchronous", async || before.number(synchronous).await == 1).await;
    let connect = async |database: &Database, name: &str, synchronous_heartbeats: bool| {
        let statement_timeout = Duration::from_secs(2);
        let limit = DatabaseConfig { synchronous_heartbeats, statement_timeout, ..database.config() };
        let (name, retry_interval) = (name.to_owned(), Duration::from_millis(500));
        let config = ClientConfig { name, ttl: TTL, retry_interval, ..ClientConfig::default() };
        Client::connect(Store::new(&limit).unwrap(), config).await.unwrap()
    };
    let (waits, hurries) = (connect(&before, "waits", true).await, connect(&before, "hurries", false).await);
    let ends = waits.lock(&key("ends"), DEADLINE).await.unwrap();
    let goes_on = hurries.lock(&key("goes on"), DEADLINE).await.unwrap();
    let until = ends.held_until();
    eventually("heartbeats are replicated", async || ends.held_until() > until).await;

    standby.psql("select pg_promote()");
    let after = standby.database_called(&before.name);
    eventually("it takes writes", async || after.store().check().await.is_ok_and(|health| health.writable))
        .await;
    let other = connect(&after, "other", false).await;
    let next = other.lock(&key("ends"), DEADLINE).await.unwrap();
    assert!(ends.is_lost(), "two hold the lock");
    assert!(next.token() > ends.token() && !next.is_lost());
    // As docs/database-faults.md says: two databases are two locks.
    let second = other.lock(&key("goes on"), DEADLINE).await.unwrap();
    assert!(!second.is_lost() && !goes_on.is_lost());
}
