//! Wishes that take effect after nobody has them any more: the key is not lost to the others for that.

use std::time::Duration;

use leadergroup_lock::{
    AcquireRequest, Acquired, Client, ClientConfig, DatabaseConfig, GrantId, Store, Token, Wait,
};

use crate::cast::{Gate, holder, key, row};
use crate::postgres::{Database, eventually, migrated};

/// Statements end soon, and so the look for what they left comes soon.
async fn client(database: &Database) -> Client {
    let statement_timeout = Duration::from_secs(10);
    let store = Store::new(&DatabaseConfig { statement_timeout, ..database.config() }).unwrap();
    let (ttl, retry_interval) = (Duration::from_mins(10), Duration::from_millis(200));
    Client::connect(store, ClientConfig { ttl, retry_interval, ..ClientConfig::default() }).await.unwrap()
}

fn wish(name: &str) -> AcquireRequest {
    AcquireRequest {
        request: GrantId::new(),
        ..AcquireRequest::new(key(name), holder("unnamed"), "asked for it")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_is_given_up_and_what_is_held_or_waited_for_stays() {
    let (database, store) = migrated().await;
    let one = client(&database).await;
    // Nobody beats for it: with a shorter ttl the client would mark it dead.
    let other = store.register("other", Duration::from_mins(10), None).await.unwrap().0;
    let held = one.try_lock(&key("held")).await.unwrap().unwrap();
    for name in ["queue", "late-queue"] {
        assert!(matches!(
            store.acquire(other, &wish(name), Wait::No).await.unwrap().outcome,
            Acquired::Granted { .. }
        ));
    }
    drop(one.try_lock(&key("late")).await.unwrap().unwrap());
    eventually("it is released", async || row(&store, &key("late")).await.holder.is_none()).await;
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.lock(&key("queue"), Duration::from_mins(10)).await }
    });
    let waiters = async |name: &str| store.waiters(&key(name), 10).await.unwrap().len();
    eventually("it waits", async || waiters("queue").await == 1).await;

    // One that is dropped when nobody can say yet what comes of it: its row is not to be seen before the commit.
    let mut gate = Gate::close_for(&database, "insert on leadergroup.lock").await;
    let dropped = tokio::spawn({
        let one = one.clone();
        async move { one.try_lock(&key("dropped")).await }
    });
    gate.somebody_waits().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    gate.open().await;
    // Copies of questions that were held up on their way, as if the answers had come to others of the same request.
    let own = store.info(&key("held")).await.unwrap().unwrap().charge.unwrap().session;
    let late = store.acquire(own, &wish("late"), Wait::No).await.unwrap().outcome;
    assert_eq!(late, Acquired::Granted { token: Token::new(2) });
    assert_eq!(
        store.acquire(own, &wish("late-queue"), Wait::InQueue).await.unwrap().outcome,
        Acquired::Waiting
    );

    eventually("the late grant is given up", async || row(&store, &key("late")).await.holder.is_none()).await;
    eventually("the late place is given up", async || waiters("late-queue").await == 0).await;
    let next = wish("dropped");
    let taken = async || {
        matches!(store.acquire(other, &next, Wait::No).await.unwrap().outcome, Acquired::Granted { .. })
    };
    eventually("the dropped one is free", taken).await;
    assert!(!held.is_lost() && row(&store, &key("held")).await.holder.is_some());
    assert_eq!(waiters("queue").await, 1, "who still waits keeps its place");
    waiting.abort();
}
