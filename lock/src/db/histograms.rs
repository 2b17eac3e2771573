//! Distributions of durations, for the metrics of the crate `prometheus-client`.

use prometheus_client::metrics::histogram::Histogram;

/// Buckets for statements and heartbeats: from a database on the same machine to one that costs the session.
const DATABASE_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Buckets for waits and terms: from one answer of the database to a day.
const WORK_SECONDS: [f64; 12] =
    [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0];

/// The individual values behind some of the sums in [`LockStats`](crate::LockStats).
#[derive(Debug)]
pub(crate) struct Histograms {
    pub(crate) waits: Histogram,
    pub(crate) holds: Histogram,
    pub(crate) heartbeat_lag: Histogram,
    pub(crate) statements: Histogram,
}

impl Default for Histograms {
    fn default() -> Self {
        Self {
            waits: Histogram::new(WORK_SECONDS),
            holds: Histogram::new(WORK_SECONDS),
            heartbeat_lag: Histogram::new(DATABASE_SECONDS),
            statements: Histogram::new(DATABASE_SECONDS),
        }
    }
}
