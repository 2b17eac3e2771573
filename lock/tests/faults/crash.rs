//! A server that crashes, and comes back with all but the last moments of what it had answered.

use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Released, Store, Token};

use crate::cast::{key, row};
use crate::postgres::{Server, eventually};

/// The answer to a release that hands the key to nobody does not wait for the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_crash_took_back_is_made_again() {
    // Nothing else brings it to the disk soon.
    let server = Server::start(&[("wal_writer_delay", "10s"), ("autovacuum", "off")]);
    let database = server.database().await;
    let statement_timeout = Duration::from_secs(10);
    let store = Store::new(&DatabaseConfig { statement_timeout, ..database.config() }).unwrap();
    store.migrate().await.unwrap();
    let (ttl, retry_interval) = (Duration::from_hours(1), Duration::from_mins(10));
    let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
    let client = Client::connect(store.clone(), config).await.unwrap();
    eventually("it listens", async || database.listening().await == 1).await;
    // That the log's writer comes by at the very moment is not likely; five times in a row it does not.
    for number in 1..=5 {
        let guard = client.try_lock(&key("a")).await.unwrap().unwrap();
        assert_eq!(guard.token(), Token::new(number), "what was granted is there after every crash");
        assert_eq!(guard.release().await.unwrap(), Released::Done);
        server.kill();
        server.launch();
        eventually("the key is free", async || row(&store, &key("a")).await.holder.is_none()).await;
        let terms = store.history(&key("a"), 1).await.unwrap();
        let (_, reason) = terms[0].ended.as_ref().unwrap();
        if reason == "nobody waited any more" {
            return;
        }
        assert_eq!(reason, "released by its holder");
    }
    panic!("every release was on the disk before its answer, or soon after");
}
