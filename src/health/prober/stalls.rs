//! Our own stalls: the times in which this process did not run, and so could not have heard an answer.
//!
//! A process that is stopped, throttled or suspended while a probe is under way finds its timer expired when it runs again,
//! with the answer perhaps in the kernel's buffer, perhaps never read. So a probe's timeout counts only the time in which we
//! were listening, and a probe that suffered a stall as long as its timeout says nothing against its pod.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::super::clock::Monotonic;

/// How often we look whether we run. Stalls much shorter than this do no harm to any timeout.
const TICK: Duration = Duration::from_millis(25);
/// A tick that is this late was not just rounded up.
const NOTABLE: Duration = Duration::from_millis(10);
/// How many stalls are remembered, each shorter than the one before it.
const REMEMBERED: usize = 32;

/// The stalls so far.
#[derive(Debug)]
pub(super) struct Stalls(Mutex<Record>);

#[derive(Debug)]
struct Record {
    total: Duration,
    /// Ends and lengths, ever later and ever shorter: the first that ended after some time is the longest since then.
    longest: VecDeque<(Duration, Duration)>,
    /// When the next tick is due.
    due: Duration,
}

/// Runs for the prober's life: a tick that comes late tells of a stall.
pub(super) async fn watch(stalls: Arc<Stalls>) {
    loop {
        tokio::time::sleep(TICK).await;
        stalls.tick(Monotonic::now());
    }
}

impl Stalls {
    /// None so far; the first tick is due soon.
    pub(super) fn new(now: Duration) -> Self {
        Self(Mutex::new(Record { total: Duration::ZERO, longest: VecDeque::new(), due: now + TICK }))
    }

    fn tick(&self, now: Duration) {
        let mut record = self.0.lock();
        let length = record.late(now);
        record.due = now + TICK;
        if length.is_zero() {
            return;
        }
        record.total += length;
        while record.longest.back().is_some_and(|(_, shorter)| *shorter <= length) {
            record.longest.pop_back();
        }
        if record.longest.len() < REMEMBERED {
            record.longest.push_back((now, length));
        }
    }

    /// How long we have stalled in all. Only differences mean anything.
    pub(super) fn total(&self, now: Duration) -> Duration {
        let record = self.0.lock();
        record.total + record.late(now)
    }

    /// The longest stall that ended after `since`.
    pub(super) fn longest_since(&self, since: Duration, now: Duration) -> Duration {
        let record = self.0.lock();
        let longest = record.longest.iter().find(|(end, _)| *end > since).map(|(_, length)| *length);
        longest.unwrap_or_default().max(record.late(now))
    }
}

impl Record {
    /// How late the next tick is by now: whoever wakes before the watch does, from a stall that is not recorded yet, sees it
    /// here.
    fn late(&self, now: Duration) -> Duration {
        let late = now.saturating_sub(self.due);
        if late < NOTABLE { Duration::ZERO } else { late }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Ticks on time, but for these stalls: ends and lengths.
    fn after(stalls: &[(u64, u64)]) -> Stalls {
        let record = Stalls::new(ms(0));
        for (end, length) in stalls {
            record.0.lock().due = ms(end - length);
            record.tick(ms(*end));
        }
        record
    }

    #[test]
    fn the_longest_stall_since_a_time_is_found() {
        let stalls = after(&[(100, 50), (200, 20), (300, 30), (400, 15), (500, 1)]);
        assert_eq!(stalls.total(ms(500)), ms(115), "what is not notable is not counted");
        for (since, longest) in [(0, 50), (100, 30), (299, 30), (300, 15), (400, 0)] {
            assert_eq!(stalls.longest_since(ms(since), ms(500)), ms(longest), "since {since}");
        }
    }

    #[test]
    fn a_stall_counts_before_its_tick_comes_and_only_once() {
        let stalls = after(&[(100, 50)]);
        let now = ms(1_125);
        assert_eq!((stalls.total(now), stalls.longest_since(ms(100), now)), (ms(1_050), ms(1_000)));
        stalls.tick(now);
        assert_eq!((stalls.total(now), stalls.longest_since(ms(100), now)), (ms(1_050), ms(1_000)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let stalls = Stalls::new(ms(0));
        for n in 1..1_000 {
            stalls.0.lock().due = ms(0);
            stalls.tick(ms(10_000 - n));
        }
        assert_eq!(stalls.0.lock().longest.len(), REMEMBERED);
        assert_eq!(stalls.longest_since(ms(0), ms(9_001)), ms(9_999));
    }
}
