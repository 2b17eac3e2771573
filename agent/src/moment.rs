//! Points in time on two clocks.
//!
//! `CLOCK_BOOTTIME` counts while the machine is suspended, but the kernel bends it to follow the network's time: chrony
//! may slew it by 8 %. `CLOCK_MONOTONIC_RAW` is never bent, but stands still while the machine is suspended. With the
//! suspended time added to it, it is a second opinion. A deadline has passed when it has on one of them; a wait is over
//! when it is on both.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time of one machine, as two clocks show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// `CLOCK_BOOTTIME`.
    pub boottime: Duration,
    /// `CLOCK_MONOTONIC_RAW`, plus the time that the machine was suspended.
    pub raw: Duration,
}

impl Moment {
    /// The present. All processes of the machine have the same clocks.
    pub fn now() -> Self {
        // The raw clock is read first, so that a pause between the readings makes no deadline later.
        let [raw, monotonic, boottime] = [ClockId::MonotonicRaw, ClockId::Monotonic, ClockId::Boottime]
            .map(|clock| since_start(clock_gettime(clock)));
        Self { boottime, raw: raw.saturating_add(boottime.saturating_sub(monotonic)) }
    }

    /// This much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self { boottime: self.boottime.saturating_add(time), raw: self.raw.saturating_add(time) }
    }

    /// This much earlier.
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        Self { boottime: self.boottime.saturating_sub(time), raw: self.raw.saturating_sub(time) }
    }

    /// The later one of both, on each clock.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { boottime: self.boottime.max(other.boottime), raw: self.raw.max(other.raw) }
    }

    /// Whether it is later than another one, on one of the clocks.
    pub fn is_after(self, other: Self) -> bool {
        self.boottime > other.boottime || self.raw > other.raw
    }

    /// How long it is until this deadline, on the clock that reaches it first.
    pub fn until(self, deadline: Self) -> Duration {
        let left = |deadline: Duration, now| deadline.saturating_sub(now);
        left(deadline.boottime, self.boottime).min(left(deadline.raw, self.raw))
    }

    /// Whether this deadline has passed on one of the clocks.
    pub fn is_past(self, deadline: Self) -> bool {
        self.until(deadline).is_zero()
    }

    /// How long ago an earlier moment was, on the clock that shows less.
    pub fn since(self, earlier: Self) -> Duration {
        let passed = |earlier: Duration, now: Duration| now.saturating_sub(earlier);
        passed(earlier.boottime, self.boottime).min(passed(earlier.raw, self.raw))
    }
}

/// Neither part of these clocks is ever negative, and nanoseconds stay below a second.
fn since_start(time: Timespec) -> Duration {
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_deadline_passes_on_the_faster_clock_and_a_wait_ends_on_the_slower() {
        let begin = Moment { boottime: s(100), raw: s(40) };
        // Time is slewed: one of the clocks gains 8 %.
        for now in [Moment { boottime: s(208), raw: s(140) }, Moment { boottime: s(200), raw: s(148) }] {
            assert!(now.is_past(begin.after(s(108))));
            assert!(!now.is_past(begin.after(s(109))));
            assert_eq!(now.since(begin), s(100));
            assert_eq!(now.until(begin.after(s(118))), s(10));
        }
    }
}
