//! A holder that does not release its key in time: the key becomes free.

use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, Token};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::cast::{key, row};
use crate::postgres::{DEADLINE, eventually, migrated};

/// It does not matter whether it checks its guard, waits for the loss, drops the guard at that moment, or does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_held_for_as_long_as_it_may_be_is_free_whatever_the_holder_does() {
    let (database, store) = migrated().await;
    let (ttl, retry_interval) = (Duration::from_secs(5), Duration::from_secs(1));
    let max_hold = Some(Duration::from_millis(100));
    let config = ClientConfig { ttl, retry_interval, max_hold, ..ClientConfig::default() };
    let client = Client::connect(database.store(), config).await.unwrap();
    let free = async || {
        eventually("the key is free", async || row(&store, &key("a")).await.holder.is_none()).await;
    };
    for turn in 1..=12 {
        let guard = client.lock(&key("a"), DEADLINE).await.unwrap();
        assert_eq!(guard.token(), Token::new(turn));
        match turn % 4 {
            0 => timeout(DEADLINE, guard.lost()).await.unwrap(),
            1 => {
                timeout(DEADLINE, guard.lost()).await.unwrap();
                drop(guard);
                free().await;
                continue;
            }
            2 => {
                while !guard.is_lost() {
                    yield_now().await;
                }
            }
            _ => {}
        }
        free().await;
        assert!(guard.is_lost());
    }
}
