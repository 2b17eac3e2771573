//! A heartbeat returns only a few other sessions, however many there are; every death is still noticed.

use std::collections::BTreeSet;
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, SessionId, Store, Token};

use crate::cast::{TTL, key, session};
use crate::postgres::{DEADLINE, Database, eventually, migrated};

/// Adds sessions without a heartbeat, which are not marked dead within a test.
async fn add_sessions(database: &Database, count: usize) {
    database
        .sql(&format!(
            "insert into leadergroup.session (id, name, ttl_ms)
             select gen_random_uuid(), 'other', 3600000 from generate_series(1, {count})"
        ))
        .await;
}

async fn living(store: &Store, database: &Database) -> BTreeSet<SessionId> {
    let ids = "select id from leadergroup.session where not dead";
    let ids: Vec<uuid::Uuid> = sqlx::query_scalar(ids).fetch_all(&mut database.admin().await).await.unwrap();
    let summary = store.summary().await.unwrap();
    assert_eq!(summary.living_sessions, ids.len() as u64);
    ids.into_iter().map(SessionId::from).collect()
}

#[tokio::test]
async fn the_answer_does_not_grow_with_the_sessions_and_each_one_is_watched_by_others() {
    let (database, store) = migrated().await;
    for (added, shown) in [(1, 0), (1, 1), (2, 3), (1, 3), (495, 3)] {
        // The very first session is alone.
        add_sessions(&database, added).await;
        let all = living(&store, &database).await;
        let mut watched = std::collections::BTreeMap::<_, usize>::new();
        for own in &all {
            let beat = store.beat(*own, &[]).await.unwrap();
            assert!(beat.sessions.iter().all(|seen| seen.id != *own && !seen.peer && !seen.dead));
            assert_eq!(beat.sessions.len(), shown, "of {}", all.len());
            for seen in beat.sessions {
                *watched.entry(seen.id).or_default() += 1;
            }
        }
        let expected = all.iter().filter(|_| shown > 0).map(|id| (*id, shown)).collect();
        assert_eq!(watched, expected, "each is watched by as many as it watches");
    }
}

#[tokio::test]
async fn peers_see_all_of_each_other_and_others_only_their_neighbours() {
    let (database, store) = migrated().await;
    add_sessions(&database, 100).await;
    let mut peers = BTreeSet::new();
    for number in 0..10 {
        let place = format!("node-{number}");
        peers.insert((
            store.register("replica", TTL, Some("web"), Some(&place)).await.unwrap().0,
            Some(place),
        ));
    }
    let stranger = store.register("replica", TTL, Some("other web"), None).await.unwrap().0;
    for own in &peers {
        let beat = store.beat(own.0, &[]).await.unwrap();
        let seen = beat.sessions.iter().filter(|seen| seen.peer);
        let seen: BTreeSet<_> = seen.map(|seen| (seen.id, seen.place.clone())).collect();
        assert_eq!(seen, peers.iter().filter(|peer| *peer != own).cloned().collect());
        assert!(beat.sessions.len() <= 9 + 3, "{}", beat.sessions.len());
    }
    let beat = store.beat(stranger, &[]).await.unwrap();
    assert!(beat.sessions.len() == 3 && beat.sessions.iter().all(|seen| !seen.peer));
}

async fn client(database: &Database) -> Client {
    let (ttl, retry_interval) = (Duration::from_secs(3), Duration::from_millis(300));
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

/// If many die at the same moment, most of them have only dead neighbours.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_dead_sessions_is_marked_dead_though_only_two_live() {
    let (database, store) = migrated().await;
    let _clients = [client(&database).await, client(&database).await];
    for _ in 0..12 {
        store.register("dead", Duration::from_millis(500), None, None).await.unwrap();
    }
    let dead = "select count(*) from leadergroup.session where dead and name = 'dead'";
    eventually("all are marked dead", async || database.number(dead).await == 12).await;
    assert_eq!(store.summary().await.unwrap().living_sessions, 2);
}

/// A waiter watches the holder of its key, even if it is not a neighbour.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_notices_the_death_of_a_holder_that_is_no_neighbour() {
    let (database, store) = migrated().await;
    let (holder, waiter) = (client(&database).await, client(&database).await);
    let held = holder.try_lock(&key("a")).await.unwrap().unwrap();
    let waits = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.lock(&key("a"), DEADLINE).await.unwrap().token() }
    });
    eventually("it waits", async || store.waiters(&key("a"), 1).await.unwrap().len() == 1).await;
    let waiting = store.waiters(&key("a"), 1).await.unwrap()[0].session;
    // Whatever ids the two have: these three are the waiter's neighbours, and they send no heartbeats.
    for distance in 1..=3 {
        let id = uuid::Uuid::from_u128(waiting.as_uuid().as_u128().wrapping_add(distance));
        database
            .sql(&format!(
                "insert into leadergroup.session (id, name, ttl_ms) values ('{id}', 'between', 3600000)"
            ))
            .await;
    }
    let holding = store.info(&key("a")).await.unwrap().unwrap().session.unwrap().id;
    let shown = store.beat(waiting, &[]).await.unwrap().sessions;
    assert!(shown.iter().all(|seen| seen.id != holding), "it is no neighbour");
    let beats = format!("select beat from leadergroup.session where id = '{waiting}'");
    // Seen alive once before it dies.
    let (before, held_before) = (database.number(&beats).await, held.held_until());
    eventually("both beat", async || {
        database.number(&beats).await > before + 1 && held.held_until() > held_before
    })
    .await;
    // As if its process were killed: no release, and no more heartbeats.
    std::mem::forget(held);
    drop(holder);
    let died = database.number(&beats).await;
    assert_eq!(waits.await.unwrap(), Token::new(2));
    // Ten heartbeats make a ttl. One sees the last beat, one may come early, and then there are the mark and the grant.
    // The number is read after that, and the heartbeats go on: on a busy machine another ttl may pass until then.
    let took = database.number(&beats).await - died;
    assert!(took <= 10 + 4 + 10, "{took} heartbeats");
    let dead = "select count(*) from leadergroup.session where dead";
    assert_eq!(database.number(dead).await, 1);
    let own = session(&store).await;
    assert!(store.beat(own, &[holding]).await.unwrap().sessions.iter().any(|seen| seen.dead));
}
