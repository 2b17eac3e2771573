//! The lock without an async runtime.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use leadergroup_lock::{
    ClientConfig, ClientError, Key, LockError, Released, Store, Successor, Token, Transferred, blocking,
    monotonic,
};
use tokio::runtime::Runtime;

use crate::postgres::{DEADLINE, Database, database};

#[path = "postgres/mod.rs"]
mod postgres;

/// A runtime for the tests' databases. The tested code does not use it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

fn migrated() -> (Database, Store) {
    let database = RUNTIME.block_on(database());
    let store = database.store();
    blocking::migrate(&store).unwrap();
    (database, store)
}

fn client(store: &Store, name: &str) -> blocking::Client {
    with_ttl(store, name, Duration::from_secs(3))
}

fn with_ttl(store: &Store, name: &str, ttl: Duration) -> blocking::Client {
    let retry_interval = Duration::from_millis(100);
    let config = ClientConfig { name: name.into(), ttl, retry_interval, ..ClientConfig::default() };
    blocking::Client::connect(store.clone(), config).unwrap()
}

fn key() -> Key {
    Key::new("a").unwrap()
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn number(database: &Database, sql: &str) -> i64 {
    RUNTIME.block_on(database.number(sql))
}

fn mark_dead(database: &Database) {
    RUNTIME.block_on(database.sql("update leadergroup.session set dead = true, dead_at = now()"));
}

#[test]
fn a_key_goes_from_thread_to_thread() {
    let (database, store) = &migrated();
    let (one, two) = (client(store, "one"), client(&database.store(), "two"));
    let held = one.try_lock(&key()).unwrap().unwrap();
    assert_eq!((held.key(), held.token(), held.is_lost()), (&key(), Token::new(1), false));
    assert!(held.held_until().unwrap() > monotonic());
    assert!(two.try_lock(&key()).unwrap().is_none());
    let late = two.lock(&key(), Duration::from_millis(50)).unwrap_err();
    assert!(late.to_string().contains("could not be acquired within "), "{late}");
    let waiters = |count| move || number(database, "select count(*) from leadergroup.waiter") == count;
    eventually("its place is given up", waiters(0));
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| two.lock(&key(), DEADLINE).unwrap());
        eventually("it waits", waiters(1));
        assert_eq!(held.release().unwrap(), Released::Done);
        let handed = waiting.join().unwrap();
        assert_eq!(handed.token(), Token::new(2));
        // A dropped guard releases the key in the background.
        drop(handed);
        assert_eq!(one.lock(&key(), DEADLINE).unwrap().token(), Token::new(3));
    });
}

/// Nothing that the caller does can stop the heartbeats.
#[test]
fn a_thread_that_computes_keeps_the_key() {
    let (_database, store) = migrated();
    let client = with_ttl(&store, "busy", Duration::from_secs(1));
    let work = |guard: &blocking::Guard| {
        assert!(!guard.wait_lost(Duration::from_millis(10)));
        let (start, before) = (Instant::now(), store.stats().heartbeats);
        // Longer than the ttl.
        while start.elapsed() < Duration::from_millis(1_200) || store.stats().heartbeats < before + 5 {
            assert!(start.elapsed() < DEADLINE, "no heartbeats");
            std::hint::spin_loop();
        }
        guard.is_lost()
    };
    assert!(!client.run_while_held(&key(), DEADLINE, work).unwrap());
    assert_eq!(store.stats().lost, 0);
    assert!(client.try_lock(&key()).unwrap().is_some(), "it was released");
}

#[test]
fn a_closure_is_told_that_the_key_is_lost() {
    const MORE_WORK: Duration = Duration::from_millis(20);
    let (database, store) = migrated();
    let client = client(&store, "loser");
    let work = |guard: &blocking::Guard| {
        mark_dead(&database);
        assert!(guard.wait_lost(DEADLINE) && guard.is_lost() && guard.held_until().is_none());
        let lost = monotonic();
        while monotonic() < lost + MORE_WORK {
            std::hint::spin_loop();
        }
    };
    let error = client.run_while_held(&key(), DEADLINE, work).unwrap_err();
    let ClientError::Lost { key: name, token, ago } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), *token), (key().as_str(), Token::new(1)));
    assert!(*ago >= MORE_WORK, "{error}");
    let again = client.lock(&key(), DEADLINE).unwrap();
    assert_eq!(again.token(), Token::new(2));
    mark_dead(&database);
    assert!(again.wait_lost(DEADLINE));
    assert_eq!(again.release().unwrap(), Released::WasLost);
}

#[test]
fn a_key_goes_to_a_named_waiter() {
    let (database, store) = &migrated();
    let (one, two) = (client(store, "one"), client(&database.store(), "two"));
    let held = one.try_lock(&key()).unwrap().unwrap();
    let Transferred::NotWaiting(held) = held.transfer_to(Successor::Name("two")).unwrap() else {
        panic!("nobody waits")
    };
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| two.lock(&key(), DEADLINE).unwrap());
        let waits = || number(database, "select count(*) from leadergroup.waiter") == 1;
        eventually("it waits", waits);
        assert!(matches!(held.transfer_to(Successor::Name("two")).unwrap(), Transferred::Done));
        assert_eq!(waiting.join().unwrap().token(), Token::new(2));
    });
}

#[test]
fn a_warning_comes_before_the_loss() {
    let (database, store) = migrated();
    let client = with_ttl(&store, "warned", Duration::from_secs(10));
    let held = client.try_lock(&key()).unwrap().unwrap();
    assert!(!held.wait_in_jeopardy(Duration::from_millis(10)));
    RUNTIME.block_on(database.sql(
        "create function public.silence() returns trigger language plpgsql as
         'begin raise ''no heartbeat gets through''; end';
         create trigger silence before update of beat on leadergroup.session
         for each row execute function public.silence()",
    ));
    assert!(held.wait_in_jeopardy(DEADLINE) && !held.is_lost());
}

#[test]
fn a_campaign_goes_on_after_a_loss_and_ends_with_the_client() {
    let (database, store) = migrated();
    let client = client(&store, "candidate");
    let mut terms = Vec::new();
    let Err(error) = client.campaign(&key(), |guard| {
        terms.push(guard.token().get());
        match terms.len() {
            1 => {
                mark_dead(&database);
                assert!(guard.wait_in_jeopardy(DEADLINE) && guard.wait_lost(DEADLINE));
            }
            2 => {}
            _ => client.clone().shutdown().unwrap(),
        }
    });
    assert_eq!(terms, [1, 2, 3]);
    assert_eq!(error.to_string(), LockError::SessionDead.to_string());
}

#[test]
fn a_shutdown_frees_everything() {
    let (database, store) = migrated();
    let one = client(&store, "one");
    let (clone, held) = (one.clone(), one.lock(&key(), DEADLINE).unwrap());
    one.shutdown().unwrap();
    assert!(held.is_lost());
    let refused = clone.try_lock(&key()).unwrap_err().to_string();
    assert_eq!(refused, LockError::SessionDead.to_string());
    assert!(client(&database.store(), "two").try_lock(&key()).unwrap().is_some());
}

#[test]
fn an_error_comes_back() {
    let database = RUNTIME.block_on(database());
    let empty = blocking::Client::connect(database.store(), ClientConfig::default()).unwrap_err();
    assert!(matches!(empty, LockError::SchemaOld { .. }), "{empty}");
}

fn everything_within_a_runtime(database: &Database) {
    let store = database.store();
    blocking::migrate(&store).unwrap();
    let client = client(&store, "async");
    assert_eq!(client.run_while_held(&key(), DEADLINE, |_| 4711).unwrap(), 4711);
    let held = client.lock(&key(), DEADLINE).unwrap();
    assert!(!held.wait_lost(Duration::from_millis(10)));
    drop(client.clone());
    drop(held);
    client.shutdown().unwrap();
}

/// It blocks the thread, but it neither panics nor waits for ever.
#[tokio::test]
async fn it_works_on_the_only_thread_of_a_runtime() {
    everything_within_a_runtime(&database().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn it_works_on_a_runtime_with_threads() {
    let database = database().await;
    tokio::spawn(async move { everything_within_a_runtime(&database) }).await.unwrap();
}
