//! Places in queues whose session is dead: removed by acquisitions and by pruning at the same time.

use std::time::Duration;

use leadergroup_lock::{
    Changed, DatabaseConfig, SessionId, Store, Token,
    admin::Retention,
    protocol::{AcquireRequest, Acquired, Wait},
};

use crate::cast::{Gate, dead_session, holder, key, session};
use crate::postgres::{Database, migrated};

/// Places of a session in the queue for a key.
async fn queue_up(database: &Database, name: &str, session: SessionId, places: usize) {
    database
        .sql(&format!(
            "update leadergroup.lock set awaited = true where key = '{name}';
             insert into leadergroup.waiter (key, grant_id, session, holder_uid, holder_namespace, holder_name, reason)
             select '{name}', gen_random_uuid(), '{session}', 'uid', 'namespace', 'name', 'test'
             from generate_series(1, {places})"
        ))
        .await;
}

async fn hold(store: &Store, own: SessionId, name: &str) -> Token {
    let request = AcquireRequest::new(key(name), holder("me"), "test");
    match store.acquire(own, &request, Wait::No).await.unwrap().outcome {
        Acquired::Granted { token } => token,
        other => panic!("{name}: {other:?}"),
    }
}

/// The two must not deadlock by waiting for each other's rows.
#[tokio::test(flavor = "multi_thread")]
async fn pruning_passes_over_a_place_that_an_acquisition_is_removing() {
    let (database, store) = migrated().await;
    let (own, dead) = (session(&store).await, dead_session(&store).await);
    let token = hold(&store, own, "a").await;
    queue_up(&database, "a", dead, 2).await;
    let request = AcquireRequest::new(key("a"), holder("next"), "test");
    assert_eq!(store.acquire(own, &request, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    // The acquisition stops with the first place locked; it takes the second one later.
    let mut gate = Gate::close_for(&database, "delete on leadergroup.waiter").await;
    database
        .sql(
            "create or replace function leadergroup.gate() returns trigger language plpgsql as
             'begin
                  if old.id = (select min(w.id) from leadergroup.waiter as w) then
                      perform pg_catalog.pg_advisory_xact_lock(4711);
                  end if;
                  return old;
              end'",
        )
        .await;
    let releasing = tokio::spawn({
        let store = store.clone();
        async move { store.release(own, &key("a"), token, "done").await.unwrap() }
    });
    gate.somebody_waits().await;
    let config = DatabaseConfig { statement_timeout: Duration::from_secs(5), ..database.config() };
    let pruned = Store::new(&config).unwrap().prune(Retention::default()).await.unwrap();
    assert_eq!(pruned.waiters, 1, "the one that is not locked");
    gate.open().await;
    assert_eq!(releasing.await.unwrap(), Changed::Done);
    assert_eq!(database.number("select count(*) from leadergroup.waiter").await, 0);
    assert_eq!(store.info(&key("a")).await.unwrap().unwrap().holder.unwrap().name, "next");
}

/// A deadlock would be an error in one of the two.
#[tokio::test(flavor = "multi_thread")]
async fn pruning_and_acquisitions_never_meet_in_a_deadlock() {
    const KEYS: usize = 3;
    const TURNS: usize = 15;
    let (database, store) = migrated().await;
    let (own, dead) = (session(&store).await, dead_session(&store).await);
    let work = (0..KEYS).map(async |number| {
        let name = format!("key-{number}");
        for _ in 0..TURNS {
            let token = hold(&store, own, &name).await;
            queue_up(&database, &name, dead, 300).await;
            let next = AcquireRequest::new(key(&name), holder("next"), "test");
            assert_eq!(store.acquire(own, &next, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
            assert_eq!(store.release(own, &key(&name), token, "done").await.unwrap(), Changed::Done);
            let Acquired::Granted { token } = store.acquire(own, &next, Wait::InQueue).await.unwrap().outcome
            else {
                panic!("it is its turn")
            };
            assert_eq!(store.release(own, &key(&name), token, "done").await.unwrap(), Changed::Done);
        }
    });
    let pruner = database.store();
    let mut removed = 0;
    tokio::select! {
        _ = futures::future::join_all(work) => {}
        () = async {
            loop {
                removed += pruner.prune(Retention::default()).await.unwrap().waiters;
            }
        } => {}
    }
    assert!(removed > 0, "the acquisitions removed all of them");
}
