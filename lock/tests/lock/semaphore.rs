//! Several keys as a semaphore, as the documentation recommends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use leadergroup_lock::{Client, ClientConfig, ClientError, Guard, Key};
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::cast::key;
use crate::postgres::{DEADLINE, migrated};

const SEATS: usize = 3;
/// Between two rounds of tries, as in the documentation, but shorter.
const PAUSE: Duration = Duration::from_millis(50);

/// The queue is that of the key `licence`. Its holder takes the next free seat.
async fn sit_down(client: &Client) -> Result<Guard, ClientError> {
    let turn = client.lock(&key("licence"), DEADLINE).await?;
    let seats: Vec<Key> = (0..SEATS).map(|seat| key(&format!("licence/{seat}"))).collect();
    loop {
        for seat in &seats {
            if let Some(guard) = client.try_lock(seat).await? {
                let _ = turn.release().await?;
                return Ok(guard);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_keys_and_a_queue_admit_three_holders() {
    let (_database, store) = migrated().await;
    let seated = Arc::new(AtomicUsize::new(0));
    // Nobody gets up before all seats are taken.
    let full = Arc::new(Barrier::new(SEATS));
    let visitors = (0..SEATS * 3).map(|_| {
        let (store, seated, full) = (store.clone(), Arc::clone(&seated), Arc::clone(&full));
        tokio::spawn(async move {
            let client = Client::connect(store, ClientConfig::default()).await.unwrap();
            let guard = sit_down(&client).await.unwrap();
            assert!(seated.fetch_add(1, Ordering::SeqCst) < SEATS);
            full.wait().await;
            seated.fetch_sub(1, Ordering::SeqCst);
            let _ = guard.release().await.unwrap();
        })
    });
    for visitor in timeout(DEADLINE, join_all(visitors)).await.expect("all had a seat") {
        visitor.unwrap();
    }
}
