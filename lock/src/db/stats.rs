//! Statistics of a store and its clients. Cheap enough to be always on.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::PoolState;

/// The counts of a store, its clones and its clients since the store was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Tries and waits for keys that clients began, and requested grants.
    pub attempts: u64,
    /// Attempts that ended with the key.
    pub wins: u64,
    /// Attempts that ended without the key: because others held it, because of the deadline, a refusal or an error, or
    /// because they were given up.
    pub losses: u64,
    /// Answers that others hold the key, wait for it, or change it at this moment; a waiter gets one each time it
    /// polls.
    pub contended: u64,
    /// Waits in queues that have ended, with or without the key.
    pub waits: u64,
    /// Their total duration.
    pub waited: Duration,
    /// Terms that clients held, and that have ended.
    pub holds: u64,
    /// Their total duration.
    pub held: Duration,
    /// Terms that were lost before they were released.
    pub lost: u64,
    /// Heartbeats that were answered.
    pub heartbeats: u64,
    /// How long after its due time the last of them was answered.
    pub heartbeat_lag: Duration,
    /// The longest such time.
    pub longest_heartbeat_lag: Duration,
    /// The connections at this moment, without the one for hints.
    pub pool: PoolState,
}

/// The counts, without the state of the connections.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    stats: Mutex<LockStats>,
    #[cfg(feature = "prometheus-client")]
    pub(crate) histograms: crate::db::histograms::Histograms,
}

/// A duration whose individual values are observed, not only their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observed {
    /// A wait in a queue.
    Wait,
    /// A term that a client held.
    Hold,
    /// How long after its due time a heartbeat was answered.
    HeartbeatLag,
    /// A statement, including the wait for its connection.
    Statement,
}

impl Counters {
    /// Observes a value if the feature `prometheus-client` is on; does nothing otherwise.
    fn observe(&self, what: Observed, time: Duration) {
        #[cfg(feature = "prometheus-client")]
        {
            let histogram = match what {
                Observed::Wait => &self.histograms.waits,
                Observed::Hold => &self.histograms.holds,
                Observed::HeartbeatLag => &self.histograms.heartbeat_lag,
                Observed::Statement => &self.histograms.statements,
            };
            histogram.observe(time.as_secs_f64());
        }
        #[cfg(not(feature = "prometheus-client"))]
        let _ = (self, what, time);
    }

    /// An answer reported that others hold the key, or want it.
    pub(crate) fn contended(&self) {
        self.stats.lock().contended += 1;
    }

    /// A term that a client held has ended.
    pub(crate) fn held(&self, time: Duration, lost: bool) {
        self.observe(Observed::Hold, time);
        let mut stats = self.stats.lock();
        stats.holds += 1;
        stats.held += time;
        stats.lost += u64::from(lost);
    }

    /// The server has refused a release, because the term was lost before.
    pub(crate) fn lost(&self) {
        self.stats.lock().lost += 1;
    }

    /// A heartbeat was answered this long after its due time.
    pub(crate) fn heartbeat(&self, lag: Duration) {
        self.observe(Observed::HeartbeatLag, lag);
        let mut stats = self.stats.lock();
        stats.heartbeats += 1;
        stats.heartbeat_lag = lag;
        stats.longest_heartbeat_lag = stats.longest_heartbeat_lag.max(lag);
    }

    pub(crate) fn snapshot(&self, pool: PoolState) -> LockStats {
        LockStats { pool, ..*self.stats.lock() }
    }
}

/// One try to get a key, one wait for it, or one requested grant. It is counted however it ends, even if it is dropped.
pub(crate) struct Attempt<'a> {
    counters: &'a Counters,
    waiting_since: Option<Instant>,
    won: bool,
}

impl<'a> Attempt<'a> {
    pub(crate) fn begin(counters: &'a Counters) -> Self {
        counters.stats.lock().attempts += 1;
        Self { counters, waiting_since: None, won: false }
    }

    /// The request is in the queue.
    pub(crate) fn queues(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn won(&mut self) {
        self.won = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut stats = self.counters.stats.lock();
        if self.won {
            stats.wins += 1;
        } else {
            stats.losses += 1;
        }
        if let Some(since) = self.waiting_since {
            let waited = since.elapsed();
            stats.waits += 1;
            stats.waited += waited;
            drop(stats);
            self.counters.observe(Observed::Wait, waited);
        }
    }
}

/// Observes how long a statement takes, however it ends. Without the feature the clock is not read.
pub(crate) struct Timer<'a> {
    counters: &'a Counters,
    since: Option<Instant>,
}

impl<'a> Timer<'a> {
    pub(crate) fn start(counters: &'a Counters) -> Self {
        Self { counters, since: cfg!(feature = "prometheus-client").then(Instant::now) }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.counters.observe(Observed::Statement, since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn however_an_attempt_ends_it_is_counted() {
        let counters = Counters::default();
        Attempt::begin(&counters).won();
        let mut waiting = Attempt::begin(&counters);
        waiting.queues();
        drop(waiting);
        counters.held(ms(1_500), true);
        counters.held(ms(500), false);
        counters.heartbeat(ms(9));
        counters.heartbeat(ms(3));
        let stats = counters.snapshot(PoolState::default());
        assert_eq!((stats.attempts, stats.wins, stats.losses, stats.contended), (2, 1, 1, 0));
        assert_eq!((stats.waits, stats.holds, stats.lost, stats.held), (1, 2, 1, ms(2_000)));
        assert_eq!((stats.heartbeats, stats.heartbeat_lag, stats.longest_heartbeat_lag), (2, ms(3), ms(9)));
    }
}
