//! Keys that a living session loses: its guards are lost. The regular comparison is too slow for these tests.

use std::time::Duration;

use leadergroup_lock::{Changed, Client, ClientConfig, Guard, Released, Token};
use tokio::time::timeout;

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, migrated};

async fn client(database: &Database) -> Client {
    let (ttl, retry_interval) = (Duration::from_mins(10), Duration::from_millis(200));
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

async fn taken(client: &Client, name: &str) -> Guard {
    client.try_lock(&key(name)).await.unwrap().expect("free")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_key_is_taken_by_force_is_told_and_keeps_its_others() {
    let (database, store) = migrated().await;
    let one = client(&database).await;
    let (held, other) = (taken(&one, "a").await, taken(&one, "b").await);
    assert_eq!(store.force_release(&key("a"), Token::new(1), "stuck").await.unwrap(), Changed::Done);
    timeout(DEADLINE, held.lost()).await.expect("a heartbeat shows it");
    assert!(!other.is_lost());
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    let again = taken(&one, "a").await;
    assert_eq!((again.token(), again.is_lost()), (Token::new(2), false));
    assert_eq!(other.release().await.unwrap(), Released::Done);
}

/// As after a failover to a replica that has the session, but not the last grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_the_database_has_lost_is_noticed() {
    let (database, _store) = migrated().await;
    let one = client(&database).await;
    let (held, other) = (taken(&one, "a").await, taken(&one, "b").await);
    // Whether it has sent a heartbeat before does not matter.
    database
        .sql(
            "delete from leadergroup.lock where key = 'a';
             update leadergroup.meta set history = 'elsewhere/00000001'",
        )
        .await;
    timeout(DEADLINE, held.lost()).await.expect("looked at");
    assert!(!other.is_lost());
}
