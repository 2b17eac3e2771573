//! When the declaration is read: pure, so that a simulation reads as the agent does.

use std::time::Duration;

use crate::contract::Declared;

/// The longest time limit of a read, and the longest pause after one that failed: a lease has room for several.
const LONGEST_READ: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The shortest interval of reads, whatever the lease is.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// The shortest time between two reads: a group that changes all the time does not make its agents read all the time.
pub const BREATH: Duration = Duration::from_millis(20);
/// How many reads one lease has.
const READS_IN_LEASE: u32 = 3;

/// When to read: a third of a lease after the last read, but not later than at the usual interval, and soon after a
/// failure.
#[derive(Clone, Debug)]
pub struct Schedule {
    usual: Duration,
    interval: Duration,
    failures: u32,
}

impl Schedule {
    /// Before the first read. `usual` is the interval while no term of the pod is declared.
    pub fn new(usual: Duration) -> Self {
        Self { usual, interval: usual, failures: 0 }
    }

    /// Time limit for the next read.
    pub fn limit(&self) -> Duration {
        (self.interval / 2).min(LONGEST_READ)
    }

    /// Whether the last read has failed.
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// A read has shown this. Returns when to read again.
    pub fn answered(&mut self, shown: Option<&Declared>) -> Duration {
        self.failures = 0;
        let lease = shown.and_then(|declared| Some(declared.run.as_ref()?.lease));
        let of_lease = lease.map_or(self.usual, |lease| lease / READS_IN_LEASE);
        self.interval = of_lease.min(self.usual).max(SHORTEST_INTERVAL);
        self.interval
    }

    /// A read has failed. Returns when to read again.
    pub fn failed(&mut self) -> Duration {
        self.failures += 1;
        (BREATH * self.failures).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Boot, Run};

    #[test]
    fn a_lease_has_three_reads_and_a_failure_is_followed_by_another_read_soon() {
        let ms = Duration::from_millis;
        let mut schedule = Schedule::new(ms(3_000));
        assert_eq!((schedule.limit(), schedule.answered(None)), (ms(1_500), ms(3_000)));
        for (lease, expected) in [(6_000, 2_000), (60_000, 3_000), (300, 200)] {
            let run = Run::uncleared(7, Boot::new([1; 32]), ms(lease));
            let declared = Declared { token: 7, run: Some(run) };
            assert_eq!(schedule.answered(Some(&declared)), ms(expected), "a lease of {lease} ms");
        }
        let pauses: Vec<_> = (0..30).map(|_| schedule.failed()).collect();
        assert_eq!((pauses[0], pauses[1], pauses[29]), (ms(20), ms(40), ms(500)));
        assert!(schedule.is_failing());
        assert_eq!(schedule.answered(None), ms(3_000));
        assert!(!schedule.is_failing());
    }
}
