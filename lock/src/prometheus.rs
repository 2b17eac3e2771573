//! Metrics of a store and its clients, for a registry of the crate `prometheus-client`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::Store;

/// Metrics of a store, its clones and its clients, read each time the registry is encoded. Needs the feature
/// `prometheus-client`.
///
/// They count from the creation of the store, including what happened before the registration. Each name begins with
/// `leadergroup_lock_`:
///
/// | metric | type | meaning |
/// |---|---|---|
/// | `attempts_total` | counter | tries and waits for keys, and requested grants |
/// | `wins_total`, `losses_total` | counter | attempts that ended with the key, and without it |
/// | `contention_total` | counter | answers that others hold the key, wait for it, or change it |
/// | `lost_total` | counter | terms that clients lost before they released them |
/// | `connections_in_use`, `connections_idle`, `connections_max` | gauge | connections to the database |
/// | `statements_waiting` | gauge | statements that wait for a connection |
/// | `wait_duration_seconds` | histogram | waits in queues that have ended |
/// | `hold_duration_seconds` | histogram | terms that have ended |
/// | `heartbeat_lag_seconds` | histogram | how long after its due time a heartbeat was answered |
/// | `statement_duration_seconds` | histogram | all statements, including the wait for a connection |
///
/// ```
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use leadergroup_lock::{DatabaseConfig, LockMetrics, Store};
/// use prometheus_client::registry::Registry;
///
/// let url = "postgres://app@db.example/app".into();
/// let store = Store::new(&DatabaseConfig { url, ..DatabaseConfig::default() })?;
/// let mut registry = Registry::default();
/// LockMetrics::new(&store).register(&mut registry);
/// # Ok(())
/// # }
/// # example().unwrap();
/// ```
///
/// A program with two databases registers each of them in a [sub-registry with a
/// label](Registry::sub_registry_with_label). To use another prefix, register the value as a
/// [collector](Registry::register_collector): its metrics' names have no prefix of their own.
#[derive(Debug, Clone)]
pub struct LockMetrics {
    store: Store,
    only_database: bool,
}

impl LockMetrics {
    /// The metrics of this store.
    pub fn new(store: &Store) -> Self {
        Self { store: store.clone(), only_database: false }
    }

    /// Leaves out the attempts, the terms and the waits for keys. What stays are the connections, the statements and
    /// the heartbeats. For a program that takes no keys, or that counts its grants itself.
    #[must_use]
    pub fn only_database(self) -> Self {
        Self { only_database: true, ..self }
    }

    /// Registers them with the prefix `leadergroup_lock`.
    pub fn register(self, registry: &mut Registry) {
        registry.sub_registry_with_prefix("leadergroup_lock").register_collector(Box::new(self));
    }
}

impl Collector for LockMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (stats, histograms) = (self.store.stats(), &self.store.database.counters.histograms);
        let mut counter = |name: &str, help: &str, value: u64| {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        };
        if !self.only_database {
            counter("attempts", "Tries and waits for keys, and requested grants", stats.attempts)?;
            counter("wins", "Attempts that ended with the key", stats.wins)?;
            counter("losses", "Attempts that ended without the key", stats.losses)?;
            counter("contention", "Answers that others hold the key or want it", stats.contended)?;
            counter("lost", "Terms that were lost before they were released", stats.lost)?;
        }
        let mut gauge = |name: &str, help: &str, value: u64| {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        gauge("connections_in_use", "Database connections in use", stats.pool.in_use)?;
        gauge("connections_idle", "Idle database connections", stats.pool.idle)?;
        gauge("connections_max", "Maximum number of connections", stats.pool.most)?;
        gauge("statements_waiting", "Statements that wait for a connection", stats.pool.waiting)?;
        let mut seconds = |name: &str, help: &str, histogram: &Histogram| {
            let (unit, kind) = (Some(&Unit::Seconds), histogram.metric_type());
            histogram.encode(encoder.encode_descriptor(name, help, unit, kind)?)
        };
        if !self.only_database {
            seconds("wait_duration", "Waits in queues that have ended", &histograms.waits)?;
            seconds("hold_duration", "Terms that have ended", &histograms.holds)?;
        }
        seconds("heartbeat_lag", "From a heartbeat's due time to its answer", &histograms.heartbeat_lag)?;
        seconds(
            "statement_duration",
            "Statements, including the wait for a connection",
            &histograms.statements,
        )
    }
}
