//! A client that is cut off from the database, while others still reach it; and connections that are terminated
//! repeatedly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, DatabaseConfig, Guard, Released, Store, Token,
    controller::{Claimed, Granted},
};
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;

use crate::cast::{Gate, claim, grant, grant_all, key, keys, session};
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
async fn a_holder_that_is_cut_off_knows_it_before_others_have_the_lock() {
    let (database, _store) = migrated().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    let cut_off = client(&database, proxy.url(&database.url()), "cut off").await;
    let other = client(&database, database.url(), "other").await;
    let mut expected = 1;
    for _ in 0..2 {
        let held = taken(&cut_off).await;
        assert_eq!(held.token(), Token::new(expected));
        proxy.freeze(true);
        let next = taken(&other).await;
        assert!(held.is_lost(), "two hold the lock");
        assert_eq!(next.token(), Token::new(expected + 1));
        timeout(DEADLINE, held.lost()).await.expect("the guard is lost");
        proxy.freeze(false);
        // Its earlier and later statements arrive late and change nothing.
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

/// A client that stops and does not read its answers keeps no row locked: the answer to the largest batch fits into the
/// buffers on the way, so that the server completes the transaction. On one thread, all tasks ask before the first
/// batch is sent, so that each of the two is as large as possible.
#[tokio::test]
async fn a_client_that_does_not_read_its_answer_keeps_no_row() {
    let (database, store) = migrated().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    let frozen = DatabaseConfig { url: proxy.url(&database.url()).into(), ..database.config() };
    let frozen = Store::new(&frozen).unwrap();
    let (own, other) = (session(&store).await, session(&store).await);
    let keys = keys(1_000);
    let claims: Vec<_> = keys.iter().map(claim).collect();
    let grants = |expected| keys.iter().map(|key| grant(key, expected, "p0")).collect::<Vec<_>>();
    let all_ours = |claimed: &[Claimed]| claimed.iter().all(|answer| matches!(answer, Claimed::Ours(_)));
    assert!(all_ours(&store.claim(own, &claims).await.unwrap()));
    let mut gate = Gate::close(&database).await;
    let asked = grants(0);
    let asking = tokio::spawn(async move { grant_all(&frozen, own, &asked).await });
    // They go in two statements, on two connections.
    eventually("both wait at the gate", async || database.waiting().await == 2).await;
    proxy.freeze(true);
    gate.open().await;
    eventually("the server is done", async || {
        database.number("select count(*) from leadergroup.terms").await == 1_000
    })
    .await;
    assert_eq!(store.mark_dead(&[(own, 1)], None).await.unwrap(), [own]);
    assert!(all_ours(&store.claim(other, &claims).await.unwrap()));
    let granted = grant_all(&store, other, &grants(1)).await;
    assert!(granted.iter().all(|answer| *answer == Granted::Granted { token: Token::new(2) }), "{granted:?}");
    asking.abort();
}

/// Every connection of every program is terminated repeatedly, while the programs take turns.
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
        eventually("a program gets its turn", async || last.load(Ordering::SeqCst) > before).await;
    }
    ended.store(true, Ordering::SeqCst);
    for program in programs {
        assert!(program.await.unwrap() > 0, "each gets its turn");
    }
}
