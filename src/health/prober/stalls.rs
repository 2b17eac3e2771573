//! Our own stalls: periods in which this process did not run, and so could not receive an answer.
//!
//! If a process is stopped, throttled or suspended during a probe, its timer has expired when it runs again, while
//! the answer may be in the kernel's buffer. So the timeout of a probe counts only the time in which this process
//! ran, and a probe with a stall as long as its timeout does not count against its pod.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;

use leadergroup_lock::Clock;

/// How often stalls are checked for. Stalls much shorter than this do not matter for any timeout.
const TICK: Duration = Duration::from_millis(25);
/// Ticks that are late by less than this are ignored: timers round up.
const NOTABLE: Duration = Duration::from_millis(10);
/// How many stalls are kept, each shorter than the one before it.
const REMEMBERED: usize = 32;

/// The stalls so far.
#[derive(Debug)]
pub(super) struct Stalls(Mutex<Record>);

#[derive(Debug)]
struct Record {
    total: Duration,
    /// Ends and lengths, each later and shorter than the one before. So the first one that ended after a given time
    /// is the longest since then.
    longest: VecDeque<(Duration, Duration)>,
    /// When the next tick is due.
    due: Duration,
}

/// Runs as long as the prober. A late tick reveals a stall.
pub(super) async fn watch(stalls: Arc<Stalls>, clock: Clock) {
    loop {
        tokio::time::sleep(TICK).await;
        stalls.tick(clock.now());
    }
}

impl Stalls {
    /// A record without stalls; the first tick is due soon.
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

    /// The total length of all stalls. Only differences are meaningful.
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
    /// How late the next tick is at `now`. A task that runs before the watch after a stall sees the stall here,
    /// although it is not recorded yet.
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

    /// A record with ticks on time except for these stalls, given as ends and lengths.
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
        assert_eq!(stalls.total(ms(500)), ms(115), "short delays are not counted");
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
