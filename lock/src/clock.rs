//! The clock that this crate uses everywhere.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time of a clock that never jumps and keeps running while the machine is suspended (`CLOCK_BOOTTIME`).
///
/// `std::time::Instant` stands still during suspend on Linux: after it, a process would still treat a lock as held that
/// it has lost.
pub fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither part of this clock is ever negative, and nanoseconds stay below a second.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs() {
        let before = monotonic();
        assert!(before > Duration::ZERO);
        assert!(monotonic() >= before);
    }

    #[test]
    fn it_counts_from_the_start_of_the_machine() {
        // In seconds with two digits: how long the machine has run, with the time in which it was suspended.
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
            let seconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
            Duration::from_secs_f64(seconds)
        };
        let (before, now, after) = (uptime(), monotonic(), uptime());
        assert!(before <= now && now <= after + Duration::from_millis(20), "{before:?}, {now:?}, {after:?}");
    }
}
