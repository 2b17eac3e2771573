//! A server that crashes right after an answer, and restarts: everything that it answered is kept, except places in
//! queues.

use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Released, Store, Token};

use crate::cast::{key, row};
use crate::postgres::{Database, Server, eventually};

/// A server on which only a commit that waits for the disk survives a crash: nothing else writes it to the disk soon.
async fn server() -> (Server, Database, Store) {
    server_with(("wal_writer_delay", "10s")).await
}

async fn server_with(setting: (&str, &str)) -> (Server, Database, Store) {
    let server = Server::start(&[("wal_writer_delay", "10s"), ("autovacuum", "off"), setting]);
    let database = server.database().await;
    let statement_timeout = Duration::from_secs(10);
    let store = Store::new(&DatabaseConfig { statement_timeout, ..database.config() }).unwrap();
    store.migrate().await.unwrap();
    (server, database, store)
}

async fn client(store: &Store, name: &str) -> Client {
    let (ttl, retry_interval) = (Duration::from_hours(1), Duration::from_mins(10));
    let config = ClientConfig { name: name.into(), ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(store.clone(), config).await.unwrap()
}

/// The WAL writer might write at this very moment, but not five times in a row.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_released_before_a_crash_is_released_afterwards() {
    let (server, _database, store) = server().await;
    let client = client(&store, "holder").await;
    for number in 1..=5 {
        let guard = client.try_lock(&key("a")).await.unwrap().unwrap();
        assert_eq!(guard.token(), Token::new(number), "every grant survives the crash");
        assert_eq!(guard.release().await.unwrap(), Released::Done);
        server.kill();
        server.launch();
        assert_eq!(row(&store, &key("a")).await.holder, None, "after release {number}");
        let terms = store.history(&key("a"), 1).await.unwrap();
        let (_, reason) = terms[0].ended.as_ref().unwrap();
        assert_eq!((terms[0].term.token, &**reason), (Token::new(number), "released by its holder"));
    }
}

/// Queueing does not wait for the disk. A waiter notices that the server was away, and asks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_in_a_queue_that_a_crash_took_away_is_asked_for_again() {
    let (server, database, store) = server().await;
    let (holding, waiting) = (client(&store, "holder").await, client(&store, "waiter").await);
    let waiters = async || database.number("select count(*) from leadergroup.waiter").await;
    for number in 1.. {
        let held = holding.try_lock(&key("a")).await.unwrap().unwrap();
        let next = tokio::spawn({
            let waiting = waiting.clone();
            async move { waiting.lock(&key("a"), Duration::from_hours(1)).await.unwrap() }
        });
        eventually("it waits", async || waiters().await == 1).await;
        server.kill();
        server.launch();
        let lost = waiters().await == 0;
        eventually("it waits again", async || waiters().await == 1).await;
        assert!(!held.is_lost() && !next.is_finished());
        assert_eq!(held.release().await.unwrap(), Released::Done);
        let next = next.await.unwrap();
        assert!(!next.is_lost());
        assert_eq!(next.token(), Token::new(2 * number));
        assert_eq!(next.release().await.unwrap(), Released::Done);
        if lost {
            return;
        }
        assert!(number < 5, "every place was on the disk before the crash");
    }
}

/// On a server whose commits wait for nothing. A grant that a program relies on must survive: otherwise nothing would
/// show the loss, and the next holder would get the same token.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_granted_before_a_crash_is_held_afterwards_whatever_the_server_s_setting() {
    let (server, _database, store) = server_with(("synchronous_commit", "off")).await;
    let client = client(&store, "holder").await;
    for number in 1..=3 {
        let name = format!("key-{number}");
        let guard = client.try_lock(&key(&name)).await.unwrap().unwrap();
        server.kill();
        server.launch();
        let rows = store.read(&[key(&name)]).await.unwrap();
        let token = rows.first().map(|row| row.token);
        assert!(
            !guard.is_lost() && token == Some(guard.token()),
            "{token:?} in the database, {guard:?} in the program"
        );
    }
}
