//! Connections: their number, and what happens to them when calls are cancelled, time out or lose the server.

use std::time::{Duration, Instant};

use futures::future::join_all;
use leadergroup_lock::{Changed, DatabaseConfig, LockError, Refusal, SessionId, Store};
use sqlx::{Connection, Executor};

use crate::cast::{GROUP, Gate, TTL, grant, grant_one, granted, key, keys, row, session, take, tombstone};
use crate::postgres::{Database, Server, eventually, migrated};

/// Connections of the program under test.
pub async fn connections(database: &Database) -> i64 {
    database
        .number(
            "select count(*) from pg_stat_activity \
             where datname = current_database() and application_name = 'leadergroup'",
        )
        .await
}

#[tokio::test]
async fn a_cancelled_call_gives_its_connection_up_and_the_server_gives_up_the_statement() {
    let (database, patient) = migrated().await;
    let own = session(&patient).await;
    let key = key("a");
    take(&patient, own, &key).await;
    drop(patient);
    // Two connections for work: if a cancelled call kept one, or returned one that is still busy, the rest would fail.
    let config = DatabaseConfig {
        max_open_connections: 4,
        statement_timeout: Duration::from_secs(4),
        ..database.config()
    };
    let store = Store::new(&config).unwrap();
    let mut gate = Gate::close(&database).await;
    for _ in 0..6 {
        let tombstones = [tombstone(&key, GROUP)];
        let busy = [Changed::Refused(Refusal::Busy)];
        tokio::select! {
            answer = store.tombstone(own, &tombstones) => {
                assert_eq!(answer.unwrap(), busy, "behind the cancelled one before");
            }
            () = gate.somebody_waits() => {}
        }
        // No answer of the cancelled statement remains on the connection.
        assert_eq!(store.read(std::slice::from_ref(&key)).await.unwrap().len(), 1);
    }
    // Not until none waits: one that takes its turn after another one does not wait for a moment, and may still take
    // effect. Only the connection of the last read is left.
    eventually("the server gave up all cancelled statements, although the gate stayed closed", async || {
        connections(&database).await == 1
    })
    .await;
    gate.open().await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p1")).await, granted(1), "nothing of them took effect");
    assert!(connections(&database).await <= 2);
}

#[tokio::test]
async fn a_statement_that_hangs_ends_in_time_and_the_next_one_works() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    let config = DatabaseConfig { statement_timeout: Duration::from_secs(2), ..database.config() };
    let store = Store::new(&config).unwrap();
    store.read(&[]).await.unwrap();
    let mut gate = Gate::close(&database).await;
    let start = Instant::now();
    let error = store.grant(own, grant(&key, 0, "p0")).await.unwrap_err();
    assert!(matches!(error, LockError::Timeout { statement: "grant", .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    gate.open().await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
}

/// A server that accepts connections and never answers.
#[tokio::test]
async fn a_silent_server_is_unreachable_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://app:secret@127.0.0.1:{}/app", listener.local_addr().unwrap().port());
    let config = DatabaseConfig {
        url: url.as_str().into(),
        statement_timeout: Duration::from_millis(200),
        ..DatabaseConfig::default()
    };
    let error = Store::new(&config).unwrap().check().await.unwrap_err();
    assert!(matches!(error, LockError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn other_work_never_holds_a_heartbeat_up() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = keys(4);
    for key in &keys {
        take(&store, own, key).await;
    }
    let busy = Store::new(&DatabaseConfig { max_open_connections: 4, ..database.config() }).unwrap();
    assert!(busy.beat(own, &[]).await.unwrap().alive);
    let mut gate = Gate::close(&database).await;
    let calls: Vec<_> = keys
        .iter()
        .map(|key| {
            let (busy, tombstone) = (busy.clone(), tombstone(key, GROUP));
            tokio::spawn(async move { busy.tombstone(own, &[tombstone]).await })
        })
        .collect();
    eventually("both connections for work are occupied", async || database.waiting().await == 2).await;
    assert!(busy.beat(own, &[]).await.unwrap().alive);
    assert_eq!(database.waiting().await, 2, "they were occupied all the time");
    gate.open().await;
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), [Changed::Done]);
    }
}

#[tokio::test]
async fn there_are_never_more_connections_than_allowed() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = keys(40);
    for key in &keys {
        take(&store, own, key).await;
    }
    drop(store);
    eventually("the first store's connections are closed", async || connections(&database).await == 0).await;
    let config = DatabaseConfig { max_open_connections: 6, max_idle_connections: 2, ..database.config() };
    let store = Store::new(&config).unwrap();
    let last = "select max(pid)::bigint from pg_stat_activity \
                where datname = current_database() and application_name = 'leadergroup'";
    let mut newest = None;
    let mut gate = Gate::close(&database).await;
    // Calls that run together will run together again: their connections are not closed at once.
    for keys in keys.chunks(20) {
        let calls: Vec<_> = keys
            .iter()
            .map(|key| {
                let (store, tombstone) = (store.clone(), tombstone(key, GROUP));
                tokio::spawn(async move { store.tombstone(own, &[tombstone]).await })
            })
            .collect();
        store.beat(own, &[]).await.unwrap();
        eventually("all connections for work are in use", async || database.waiting().await == 4).await;
        assert_eq!(connections(&database).await, 5, "one of the six is reserved for hints");
        let at_work = database.number(last).await;
        assert_eq!(*newest.get_or_insert(at_work), at_work, "another connection was made");
        gate.open().await;
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap(), [Changed::Done]);
        }
        gate.close_again().await;
    }
    eventually("superfluous ones are closed", async || {
        store.beat(own, &[]).await.unwrap();
        connections(&database).await == 1 + 2
    })
    .await;
}

/// One connection for work, and statements that take nearly as long as allowed: a fourth call does not get it in time.
#[tokio::test]
async fn a_program_that_asks_too_much_of_its_pool_is_told_so() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let all = ["a", "b", "c", "d"].map(key);
    for key in &all {
        take(&store, own, key).await;
    }
    let small = DatabaseConfig {
        max_open_connections: 3,
        statement_timeout: Duration::from_secs(4),
        ..database.config()
    };
    let store = Store::new(&small).unwrap();
    let mut gate = Gate::close(&database).await;
    let answers = join_all(all.iter().map(|key| {
        let store = &store;
        async move { store.tombstone(own, &[tombstone(key, GROUP)]).await }
    }))
    .await;
    let (told, waited): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| matches!(answer, Err(LockError::NoConnection { .. })));
    assert!(!told.is_empty(), "{answers:?}");
    // The calls that had the connection were stopped by the gate.
    let kept = |answer: &&Result<_, _>| matches!(answer, Err(LockError::Timeout { .. }));
    assert!(!waited.is_empty() && waited.iter().all(kept), "{answers:?}");
    // The heartbeat does not wait for them, and no call has to wait any more.
    assert!(store.beat(own, &[]).await.unwrap().alive);
    gate.open().await;
    for key in &all {
        assert_eq!(grant_one(&store, own, grant(key, 0, "p0")).await, granted(1));
    }
}

#[tokio::test]
async fn connections_are_renewed_when_old_and_closed_when_idle() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    drop(store);
    eventually("the first store's connections are closed", async || connections(&database).await == 0).await;
    let config = DatabaseConfig {
        connection_max_lifetime: Duration::from_millis(200),
        connection_max_idle_time: Duration::from_millis(100),
        ..database.config()
    };
    let store = Store::new(&config).unwrap();
    store.read(&[]).await.unwrap();
    store.check().await.unwrap();
    store.beat(own, &[]).await.unwrap();
    let first = database.number("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").await;
    // One statement: between two of them the connection that is left may be closed.
    let only_a_younger_one = format!(
        "select (count(*) = 1 and min(backend_start) > to_timestamp({first} / 1000000.0))::int::bigint \
         from pg_stat_activity where datname = current_database() and application_name = 'leadergroup'"
    );
    eventually("the heartbeat's connection was replaced and the idle one is gone", async || {
        store.beat(own, &[]).await.unwrap();
        database.number(&only_a_younger_one).await == 1
    })
    .await;
}

#[tokio::test]
async fn connections_that_were_cut_while_idle_are_not_noticed_by_the_caller() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    for token in 0..3 {
        assert!(store.beat(own, &[]).await.unwrap().alive);
        assert!(connections(&database).await >= 2);
        database
            .sql(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where datname = current_database() and application_name = 'leadergroup'",
            )
            .await;
        eventually("they are gone", async || connections(&database).await == 0).await;
        assert_eq!(grant_one(&store, own, grant(&key, token, "p0")).await, granted(token + 1));
        assert!(store.beat(own, &[]).await.unwrap().alive);
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_in_the_middle_of_a_statement_is_reported() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    let fresh = database.store();
    let mut gate = Gate::close(&database).await;
    let wanted = grant(&key, 0, "p0");
    let call = fresh.grant(own, wanted.clone());
    let cut = async {
        gate.somebody_waits().await;
        database
            .sql(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where datname = current_database() and wait_event_type = 'Lock'",
            )
            .await;
    };
    let (answer, ()) = tokio::join!(call, cut);
    assert!(matches!(answer, Err(LockError::Interrupted { statement: "grant", .. })), "{answer:?}");
    gate.open().await;
    assert_eq!(row(&fresh, &key).await.holder, None, "a statement that was cut off has no effect");
    assert_eq!(fresh.grant(own, wanted).await.unwrap(), granted(1), "and is repeated without harm");
}

#[tokio::test]
async fn a_server_that_goes_away_and_comes_back_is_used_again() {
    let server = Server::start(&[]);
    let (_database, store) = server.migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    for (token, stop) in [(1, Server::stop as fn(&_)), (2, Server::kill)] {
        assert!(store.beat(own, &[]).await.unwrap().alive);
        stop(&server);
        for error in [
            store.beat(own, &[]).await.unwrap_err(),
            store.grant(own, grant(&key, token, "p1")).await.unwrap_err(),
            store.check().await.unwrap_err(),
        ] {
            assert!(
                matches!(error, LockError::Unreachable { .. } | LockError::Interrupted { .. }),
                "{error}"
            );
        }
        server.launch();
        assert!(store.beat(own, &[]).await.unwrap().alive, "sessions outlive the server");
        assert_eq!(grant_one(&store, own, grant(&key, token, "p1")).await, granted(token + 1));
    }
    assert_eq!(row(&store, &key).await.session, Some(own));
}

/// A program that cannot read its answers must not keep rows locked.
#[tokio::test]
async fn an_open_transaction_of_somebody_else_costs_one_key_and_ends_by_itself() {
    let (database, store) = migrated().await;
    let own: SessionId = store.register("replica", TTL, None, None).await.unwrap().0;
    let key = key("a");
    take(&store, own, &key).await;
    // Like a connection of the program that left a transaction open.
    let url = format!("{}?options=-c%20idle_in_transaction_session_timeout%3D100", database.url());
    let mut forgetful = sqlx::postgres::PgConnection::connect(&url).await.unwrap();
    // In one message: between two, the server may already end it.
    forgetful.execute("begin; select from leadergroup.lock for update").await.unwrap();
    eventually("the server ended it", async || {
        grant_one(&store, own, grant(&key, 0, "p0")).await == granted(1)
    })
    .await;
    let idle_limit = database
        .number("select count(*) from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()")
        .await;
    assert_eq!(idle_limit, 0);
}
