//! The statistics, on a real server.

use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, Released, Store};

use crate::cast::{GROUP, Gate, claim, grant, grant_one, key, keys, session, take, tombstone};
use crate::postgres::{DEADLINE, Database, eventually, migrated};

async fn client(database: &Database, store: &Store) -> Client {
    let (ttl, retry_interval) = (Duration::from_secs(5), Duration::from_millis(100));
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    assert_eq!(database.number("select count(*) from leadergroup.waiter").await, 0);
    Client::connect(store.clone(), config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_do_is_counted_where_they_do_it() {
    let (database, store) = migrated().await;
    let other = database.store();
    let (one, two) = (client(&database, &store).await, client(&database, &other).await);
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    assert!(two.try_lock(&key("a")).await.unwrap().is_none());
    let waits = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { client.lock(&key("a"), DEADLINE).await.unwrap() })
    };
    let impatient = waits(&two);
    eventually("it waits", async || other.stats().contended >= 2).await;
    impatient.abort();
    assert!(impatient.await.unwrap_err().is_cancelled());
    let stats = other.stats();
    assert_eq!((stats.attempts, stats.wins, stats.losses, stats.waits), (2, 0, 2, 1), "{stats:?}");
    assert!(stats.waited > Duration::ZERO, "{stats:?}");
    let waiting = waits(&two);
    eventually("it waits", async || other.stats().contended > stats.contended).await;
    let _ = held.release().await.unwrap();
    let handed = waiting.await.unwrap();
    let after = other.stats();
    assert_eq!(
        (after.attempts, after.wins, after.losses, after.waits, after.holds),
        (3, 1, 2, 2, 0),
        "{after:?}"
    );
    let first = store.stats();
    assert_eq!(
        (first.attempts, first.wins, first.losses, first.holds, first.lost),
        (1, 1, 0, 1, 0),
        "{first:?}"
    );
    assert!(first.held > Duration::ZERO && first.waits == 0, "{first:?}");
    eventually("heartbeats are counted", async || store.stats().heartbeats >= 2).await;
    database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
    handed.lost().await;
    drop(handed);
    // The heartbeat that has ended the term still looks at it for a moment.
    eventually("the term is counted", async || (other.stats().holds, other.stats().lost) == (1, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_is_counted_as_lost_if_its_release_shows_that() {
    let (database, store) = migrated().await;
    let client = client(&database, &store).await;
    for (lost, is_dropped) in (1..).zip([false, true]) {
        let held = client.try_lock(&key("a")).await.unwrap().unwrap();
        store.force_release(&key("a"), held.token(), "by hand").await.unwrap();
        if is_dropped {
            drop(held);
        } else {
            assert_eq!(held.release().await, Ok(Released::WasLost));
        }
        eventually("the term is counted", async || (store.stats().holds, store.stats().lost) == (lost, lost))
            .await;
    }
    let held = client.try_lock(&key("a")).await.unwrap().unwrap();
    assert_eq!(held.release().await, Ok(Released::Done));
    assert_eq!((store.stats().holds, store.stats().lost), (3, 2));
}

/// On one thread the session is closed before the release in the background is sent, which is refused then.
#[tokio::test]
async fn a_term_that_ends_with_the_shutdown_of_its_client_is_not_counted_as_lost() {
    let (database, store) = migrated().await;
    for _ in 0..20 {
        let client = client(&database, &store).await;
        drop(client.lock(&key("a"), DEADLINE).await.unwrap());
        client.shutdown().await.unwrap();
    }
    assert_eq!((store.stats().holds, store.stats().lost), (20, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_and_connections_are_counted() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    grant_one(&store, own, grant(&key("a"), 0, "p0")).await;
    grant_one(&store, own, grant(&key("a"), 0, "p1")).await;
    let stats = store.stats();
    assert_eq!((stats.attempts, stats.wins, stats.losses, stats.contended), (2, 1, 1, 1), "{stats:?}");
    let most = u64::from(database.config().max_open_connections) - 1;
    assert_eq!((stats.pool.most, stats.pool.in_use, stats.pool.waiting), (most, 0, 0), "{stats:?}");
    assert!(stats.pool.idle >= 1, "{stats:?}");

    // One call more than there are connections for work; each of them hangs.
    let keys = keys(usize::try_from(most).unwrap());
    let claims: Vec<_> = keys.iter().map(claim).collect();
    store.claim(own, &claims).await.unwrap();
    let mut gate = Gate::close(&database).await;
    let calls: Vec<_> = keys
        .iter()
        .map(|key| {
            let (store, tombstone) = (store.clone(), tombstone(key, GROUP));
            tokio::spawn(async move { store.tombstone(own, &[tombstone]).await })
        })
        .collect();
    eventually("all but one have a connection", async || {
        let pool = store.stats().pool;
        (pool.in_use, pool.waiting) == (most - 1, 1)
    })
    .await;
    gate.open().await;
    for call in calls {
        call.await.unwrap().unwrap();
    }
    eventually("all are given back", async || {
        let pool = store.stats().pool;
        (pool.in_use, pool.waiting) == (0, 0)
    })
    .await;
}
