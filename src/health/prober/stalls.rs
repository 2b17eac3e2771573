//! Our own stalls: the times in which this process did not run, and so could not have heard an answer.
//!
//! A process that is stopped, throttled or suspended while a probe is under way finds its timer expired when it runs again,
//! with the answer perhaps in the kernel's buffer, perhaps never read. So a probe's timeout counts only the time in which we
//! were listening, and a probe that suffered a stall as long as its timeout says nothing against its pod.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{super::Monotonic, Shared};

/// How often we look whether we run. Stalls much shorter than this do no harm to any timeout.
const TICK: Duration = Duration::from_millis(25);
/// A tick that is this late was not just rounded up.
const NOTABLE: Duration = Duration::from_millis(10);
/// How many stalls are remembered, each shorter than the one before it.
const REMEMBERED: usize = 32;

/// The stalls so far.
#[derive(Debug, Default)]
pub(super) struct Stalls(Mutex<Record>);

#[derive(Debug, Default)]
struct Record {
    total: Duration,
    /// Ends and lengths, ever later and ever shorter: the first that ended after some time is the longest since then.
    longest: VecDeque<(Duration, Duration)>,
}

/// Runs for the prober's life: a tick that comes late tells of a stall.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut due = Monotonic::now() + TICK;
    loop {
        tokio::time::sleep(TICK).await;
        let now = Monotonic::now();
        shared.stalls.add(now, now.saturating_sub(due));
        due = now + TICK;
    }
}

impl Stalls {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, end: Duration, length: Duration) {
        if length < NOTABLE {
            return;
        }
        let mut record = self.record();
        record.total += length;
        while record.longest.back().is_some_and(|(_, shorter)| *shorter <= length) {
            record.longest.pop_back();
        }
        if record.longest.len() < REMEMBERED {
            record.longest.push_back((end, length));
        }
    }

    /// How long we have stalled in all. Only differences mean anything.
    pub(super) fn total(&self) -> Duration {
        self.record().total
    }

    /// The longest stall that ended after `since`.
    pub(super) fn longest_since(&self, since: Duration) -> Duration {
        self.record()
            .longest
            .iter()
            .find(|(end, _)| *end > since)
            .map_or(Duration::ZERO, |(_, length)| *length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_longest_stall_since_a_time_is_found() {
        let stalls = Stalls::default();
        for (end, length) in [(100, 50), (200, 20), (300, 30), (400, 15), (500, 1)] {
            stalls.add(ms(end), ms(length));
        }
        assert_eq!(stalls.total(), ms(115), "what is not notable is not counted");
        for (since, longest) in [(0, 50), (100, 30), (299, 30), (300, 15), (400, 0)] {
            assert_eq!(stalls.longest_since(ms(since)), ms(longest), "since {since}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let stalls = Stalls::default();
        for n in 0..1_000 {
            stalls.add(ms(n), ms(10_000 - n));
        }
        assert_eq!(stalls.record().longest.len(), REMEMBERED);
        assert_eq!(stalls.longest_since(ms(0)), ms(9_999));
    }
}
