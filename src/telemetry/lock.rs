//! The metrics of the lock, read at each scrape.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// A snapshot of the lock's statistics. The counts never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockReading {
    /// Requested changes of holder.
    pub attempts: u64,
    /// Granted changes of holder.
    pub wins: u64,
    /// Changes of holder that were not granted.
    pub losses: u64,
    /// Changes of holder that lost against a concurrent change.
    pub contended: u64,
    /// Jumps of the database's clock.
    pub clock_jumps: u64,
    /// Connections in use.
    pub connections_in_use: u64,
    /// Idle connections.
    pub connections_idle: u64,
    /// Maximum number of connections.
    pub connections_most: u64,
    /// Statements that wait for a connection.
    pub statements_waiting: u64,
}

/// Takes a reading at each scrape.
pub(super) struct LockCollector(pub(super) Box<dyn Fn() -> LockReading + Send + Sync>);

impl fmt::Debug for LockCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockCollector").finish_non_exhaustive()
    }
}

impl Collector for LockCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let reading = (self.0)();
        let mut counter = |name: &str, help: &str, value: u64| {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        };
        counter("leadergroup_lock_attempts", "Requested changes of holder", reading.attempts)?;
        counter("leadergroup_lock_wins", "Changes of holder that were granted", reading.wins)?;
        counter("leadergroup_lock_losses", "Changes of holder that were not granted", reading.losses)?;
        counter(
            "leadergroup_lock_contention",
            "Changes of holder that lost against a concurrent change",
            reading.contended,
        )?;
        counter("leadergroup_lock_clock_jumps", "Jumps of the database's clock", reading.clock_jumps)?;
        let mut gauge = |name: &str, help: &str, value: u64| {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let (in_use, idle) = (reading.connections_in_use, reading.connections_idle);
        gauge("leadergroup_lock_connections_in_use", "Database connections in use", in_use)?;
        gauge("leadergroup_lock_connections_idle", "Idle database connections", idle)?;
        gauge(
            "leadergroup_lock_connections_max",
            "Maximum number of database connections",
            reading.connections_most,
        )?;
        gauge("leadergroup_lock_waiting", "Statements waiting for a connection", reading.statements_waiting)
    }
}
