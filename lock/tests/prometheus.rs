//! The metrics of a real client, as a scrape returns them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, Key, LockMetrics, Store};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::postgres::{DEADLINE, eventually, migrated};

#[path = "postgres/mod.rs"]
mod postgres;

/// The result of a scrape.
struct Scrape(String);

impl Scrape {
    fn of(registry: &Registry) -> Self {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        Self(text)
    }

    /// The value of the sample with this name and these labels.
    fn value(&self, sample: &str) -> f64 {
        let name = format!("leadergroup_lock_{sample} ");
        let line = self.0.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {sample} in:\n{}", self.0)).parse().unwrap()
    }

    /// The number of values in a histogram, after a check that its last bucket contains all of them.
    fn count(&self, histogram: &str) -> f64 {
        let count = self.value(&format!("{histogram}_count"));
        let all = self.value(&format!("{histogram}_bucket{{le=\"+Inf\"}}"));
        assert_eq!(count.total_cmp(&all), std::cmp::Ordering::Equal, "{histogram}:\n{}", self.0);
        count
    }
}

async fn client(store: &Store) -> Client {
    let config = ClientConfig { retry_interval: Duration::from_millis(100), ..ClientConfig::default() };
    Client::connect(store.clone(), config).await.unwrap()
}

/// Checks that each of these samples has exactly the expected value.
fn assert_values(scrape: &Scrape, expected: &[(&str, u32)]) {
    for &(sample, expected) in expected {
        let value = scrape.value(sample);
        assert!((value - f64::from(expected)).abs() < 0.5, "{sample} is {value}:\n{}", scrape.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_shows_what_a_client_did() {
    let (database, store) = migrated().await;
    let mut registry = Registry::default();
    LockMetrics::new(&store).register(&mut registry);
    let key = Key::new("a").unwrap();
    let one = client(&store).await;
    let two = one.another_holder("two");

    let held = one.try_lock(&key).await.unwrap().unwrap();
    assert!(two.try_lock(&key).await.unwrap().is_none());
    let waiting = tokio::spawn({
        let key = key.clone();
        async move { two.lock(&key, DEADLINE).await.unwrap() }
    });
    let waiters = "select count(*) from leadergroup.waiter";
    eventually("it waits", async || database.number(waiters).await == 1).await;
    let _ = held.release().await.unwrap();
    let handed = waiting.await.unwrap();
    eventually("heartbeats are observed", async || {
        Scrape::of(&registry).count("heartbeat_lag_seconds") >= 2.0
    })
    .await;
    database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
    handed.lost().await;
    drop(handed);
    // The heartbeat that has ended the term still looks at it for a moment.
    eventually("the term is counted", async || Scrape::of(&registry).value("lost_total") > 0.5).await;

    let scrape = Scrape::of(&registry);
    assert_values(
        &scrape,
        &[
            ("attempts_total", 3),
            ("wins_total", 2),
            ("losses_total", 1),
            ("lost_total", 1),
            ("wait_duration_seconds_count", 1),
            ("hold_duration_seconds_count", 2),
            ("connections_max", database.config().max_open_connections - 1),
            ("statements_waiting", 0),
        ],
    );
    assert!(scrape.value("contention_total") >= 2.0, "{}", scrape.0);
    assert!(scrape.value("connections_in_use") + scrape.value("connections_idle") >= 1.0, "{}", scrape.0);
    // At least the registration of the session, two tries, a wait and a release, besides the heartbeats.
    let heartbeats = scrape.count("heartbeat_lag_seconds");
    assert!(scrape.count("statement_duration_seconds") >= 5.0 + heartbeats, "{}", scrape.0);
    // The histograms have the same sums as the store.
    let stats = store.stats();
    for (sum, expected) in [("wait_duration", stats.waited), ("hold_duration", stats.held)] {
        let (value, expected) = (scrape.value(&format!("{sum}_seconds_sum")), expected.as_secs_f64());
        assert!(expected > 0.0 && (value - expected).abs() < 1e-3, "{sum}: {value}, not {expected}");
    }
}

/// Two stores in one registry, and a prefix chosen by the program.
#[tokio::test]
async fn a_program_chooses_labels_and_prefix() {
    let (_database, store) = migrated().await;
    let _client = client(&store).await;
    let mut registry = Registry::default();
    let label = ("database".into(), "orders".into());
    LockMetrics::new(&store).register(registry.sub_registry_with_label(label));
    registry.sub_registry_with_prefix("app_lock").register_collector(Box::new(LockMetrics::new(&store)));
    let Scrape(text) = Scrape::of(&registry);
    for line in [
        "leadergroup_lock_attempts_total{database=\"orders\"} 0",
        "app_lock_attempts_total 0",
        "# UNIT leadergroup_lock_wait_duration_seconds seconds",
    ] {
        assert!(text.lines().any(|other| other == line), "no {line} in:\n{text}");
    }
}
