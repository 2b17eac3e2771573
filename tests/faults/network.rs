//! A client whose network to the database is cut, while others still reach it; and connections that are ended again and
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use leadergroup::lock::{Client, ClientConfig, DatabaseConfig, Guard, Released, Store, Token};
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, eventually, migrated, shared};
use crate::proxy::{Backend, Proxy};

const TTL: Duration = Duration::from_secs(2);

async fn client(database: &Database, url: String, name: &str) -> Client {
    let config = DatabaseConfig {
        url: url.into(),
        statement_timeout: Duration::from_millis(800),
        ..database.config()
    };
    let keep = ClientConfig {
        name: name.into(),
        ttl: TTL,
        retry_interval: Duration::from_millis(100),
        ..ClientConfig::default()
    };
    Client::connect(Store::new(&config).unwrap(), keep).await.unwrap()
}

pub async fn taken(client: &Client) -> Guard {
    client.lock(&key("a"), DEADLINE).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_cut_off_knows_it_before_anybody_else_has_the_lock() {
    let (database, _store) = migrated().await;
    let proxy = Proxy::before(Backend::of(shared())).await;
    let cut_off = client(&database, proxy.url(&database.url()), "cut off").await;
    let other = client(&database, database.url(), "other").await;
    let mut expected = 1;
    for _ in 0..2 {
        let held = taken(&cut_off).await;
        assert_eq!(held.token(), Token::new(expected));
        proxy.freeze(true);
        let next = taken(&other).await;
        assert!(held.is_lost(), "two believe");
        assert_eq!(next.token(), Token::new(expected + 1));
        timeout(DEADLINE, held.lost()).await.expect("it says so");
        proxy.freeze(false);
        // What it sent before, and what it sends now, arrives late and changes nothing.
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        assert!(!next.is_lost());
        assert_eq!(next.release().await.unwrap(), Released::Done);
        expected += 2;
    }
    drop((cut_off, other));
    eventually("no connection is left behind", async || {
        let all = "select count(*) from pg_stat_activity \
                   where datname = current_database() and application_name = 'leadergroup'";
        database.number(all).await <= 2
    })
    .await;
}

/// Every connection of every program is ended, again and again, while they take turns.
#[tokio::test(flavor = "multi_thread")]
async fn terminated_connections_never_make_two_holders() {
    let (database, _store) = migrated().await;
    let inside = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicI64::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for number in 0..4 {
        let keep = ClientConfig {
            name: format!("program-{number}"),
            ttl: DEADLINE,
            retry_interval: Duration::from_millis(50),
            ..ClientConfig::default()
        };
        clients.push(Client::connect(database.store(), keep).await.unwrap());
    }
    let programs: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            let ended = Arc::clone(&ended);
            tokio::spawn(async move {
                let mut turns = 0;
                while !ended.load(Ordering::SeqCst) {
                    let guard = client.lock(&key("a"), DEADLINE).await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    let token = guard.token().get();
                    assert!(last.swap(token, Ordering::SeqCst) < token, "tokens grow");
                    inside.store(false, Ordering::SeqCst);
                    turns += 1;
                    // An error means that the release is repeated in the background.
                    let _ = guard.release().await;
                }
                turns
            })
        })
        .collect();
    let mut admin = database.admin().await;
    for _ in 0..8 {
        let before = last.load(Ordering::SeqCst);
        let all = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where datname = current_database() and usename = 'app'";
        admin.execute(AssertSqlSafe(all)).await.unwrap();
        eventually("somebody has its turn", async || last.load(Ordering::SeqCst) > before).await;
    }
    ended.store(true, Ordering::SeqCst);
    for program in programs {
        assert!(program.await.unwrap() > 0, "each has its turn");
    }
}
