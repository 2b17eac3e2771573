//! The error of a waiter whose time is over: what prevented it in the end, and what to do about it.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, ClientError, DatabaseConfig, FencePolicy, LockError, Overrun, Reason, Store,
};

use crate::cast::{Gate, key, why};
use crate::postgres::{DEADLINE, Database, SUPERUSER, Server, eventually, migrated};

/// Long enough for nothing to end in a test.
const LONG: Duration = Duration::from_mins(10);
const PATIENCE: Duration = Duration::from_millis(300);

async fn client(database: &Database, ttl: Duration, lock_delay: Duration) -> Client {
    let retry_interval = ttl / 20;
    // So that the wait ends at its deadline.
    let confirm_death = false;
    let config = ClientConfig { ttl, retry_interval, lock_delay, confirm_death, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

async fn patient(database: &Database) -> Client {
    client(database, LONG, Duration::ZERO).await
}

/// Waits for the key until the expected reason is met, and checks that the error says what to do about it.
async fn met(client: &Client, name: &str, expected: impl Fn(&Reason) -> bool, remedy: &str) {
    eventually(&format!("the error for {name} says {remedy}"), async || {
        match client.lock(&key(name), PATIENCE).await.unwrap_err() {
            ClientError::Deadline { key, waited, reason } => {
                assert_eq!(key, name);
                assert!((PATIENCE..DEADLINE).contains(&waited), "{waited:?}");
                let text = ClientError::Deadline { key, waited, reason: reason.clone() }.to_string();
                if expected(&reason) {
                    assert!(text.contains(name) && text.contains(remedy), "{text}");
                }
                expected(&reason)
            }
            other => panic!("{other}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_who_hold_it() {
    let (database, _store) = migrated().await;
    let (one, two) = (patient(&database).await, patient(&database).await);
    let _held = one.try_lock(&key("a")).await.unwrap().unwrap();
    met(&two, "a", |reason| *reason == Reason::Others, "who they are").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_no_writes() {
    let (database, _store) = migrated().await;
    let one = patient(&database).await;
    database.sql(&format!("alter database {} set default_transaction_read_only = on", database.name)).await;
    let connections = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and usename = 'app'";
    database.sql(connections).await;
    let read_only = |reason: &Reason| *reason == Reason::Database(LockError::ReadOnly);
    met(&one, "a", read_only, "connect to the primary").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away() {
    let server = Server::start(&[]);
    let database = server.database().await;
    database.store().migrate().await.unwrap();
    let one = patient(&database).await;
    server.stop();
    let away = |reason: &Reason| matches!(reason, Reason::Database(LockError::Unreachable { .. }));
    met(&one, "a", away, "check the URL").await;
}

/// The request hangs for longer than the wait lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_has_not_answered() {
    let (database, _store) = migrated().await;
    let one = patient(&database).await;
    let mut gate = Gate::close(&database).await;
    met(&one, "a", |reason| *reason == Reason::NoAnswer, "wait longer").await;
    gate.open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_after_an_unclean_end() {
    const HOUR: Duration = Duration::from_hours(1);
    const SECOND: Duration = Duration::from_secs(1);
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database, LONG, HOUR).await, patient(&database).await);
    let _held = one.try_lock(&key("a")).await.unwrap().unwrap();
    let holder = "update leadergroup.session set dead = true, dead_at = now() \
                  where id = (select session from leadergroup.lock)";
    database.sql(holder).await;
    let delayed = |reason: &Reason| matches!(reason, Reason::Delay { delay: HOUR, left } if (SECOND..=HOUR).contains(left));
    met(&two, "a", delayed, "s are left; wait longer").await;
    let why = why(two.try_lock_or_why(&key("a")).await.unwrap());
    assert!(delayed(&why), "{why}");
}

/// According to the database, the key has no holder.
#[tokio::test(flavor = "multi_thread")]
async fn an_era_in_quarantine() {
    let (database, _store) = migrated().await;
    let one = patient(&database).await;
    database.sql("update leadergroup.meta set history = 'lost'").await;
    met(&one, "a", |reason| *reason == Reason::Quarantine, "failed over").await;
    // A client that comes after the others have noticed it.
    let beating = client(&database, Duration::from_mins(1), Duration::ZERO).await;
    met(&beating, "b", |reason| *reason == Reason::Quarantine, "failed over").await;
    assert_eq!(why(beating.try_lock_or_why(&key("b")).await.unwrap()), Reason::Quarantine);
}

/// It is free, except for a transaction of its last holder that may take as long as it needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_the_last_holder() {
    let (database, store) = migrated().await;
    let policy = FencePolicy { patience: PATIENCE / 10, overrun: Overrun::Wait };
    let config =
        ClientConfig { ttl: LONG, retry_interval: Duration::from_secs(1), ..ClientConfig::default() };
    let two = Client::connect(store.with_fence_policy(policy), config).await.unwrap();
    let one = patient(&database).await;
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    let mut application = database.admin().await;
    sqlx::raw_sql("begin; select leadergroup.fence('a', 1)").execute(&mut application).await.unwrap();
    let _ = held.release().await.unwrap();
    // The error names the process, so that a person can act on it.
    let process: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut application).await.unwrap();
    let blockers = format!("process {process} of role {SUPERUSER} (a fenced transaction)");
    let busy = Reason::Busy { blockers: Some(blockers.clone()) };
    met(&two, "a", |reason| *reason == busy, "try again").await;
    met(&two, "a", |reason| *reason == busy, &blockers).await;
    assert_eq!(why(two.try_lock_or_why(&key("a")).await.unwrap()), busy);
    sqlx::raw_sql("commit").execute(&mut application).await.unwrap();
    // Waits that are over give up their places in the background, or the lock, if it was granted to one of them at the
    // moment of the commit.
    eventually("the lock is free", async || two.try_lock(&key("a")).await.unwrap().is_some()).await;
}

/// Its session was marked dead by others, and there is no new one before its next heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn an_own_session_that_is_gone() {
    let (database, _store) = migrated().await;
    let one = patient(&database).await;
    database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
    met(&one, "a", |reason| *reason == Reason::Session, "see the log for the reason").await;
}

/// The last reason counts, not the first.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_waiter_met_in_the_end() {
    let server = Server::start(&[]);
    let database = server.database().await;
    database.store().migrate().await.unwrap();
    let config = DatabaseConfig { statement_timeout: Duration::from_secs(1), ..database.config() };
    let often = ClientConfig { ttl: LONG, retry_interval: PATIENCE / 3, ..ClientConfig::default() };
    let waiter = Client::connect(Store::new(&config).unwrap(), often).await.unwrap();
    let one = patient(&database).await;
    let _held = one.try_lock(&key("a")).await.unwrap().unwrap();
    let waiting =
        tokio::spawn(async move { waiter.lock(&key("a"), Duration::from_secs(5)).await.unwrap_err() });
    let queued = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || database.number(queued).await == 1).await;
    server.stop();
    let error = waiting.await.unwrap();
    assert!(
        matches!(&error, ClientError::Deadline { reason: Reason::Database(error), .. } if error.is_temporary()),
        "{error}"
    );
}
