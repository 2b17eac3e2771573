//! The clock for all decisions.

use std::{sync::LazyLock, time::Duration};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Time since the first use in this process, on a clock that cannot be set and that also runs while the machine is
/// suspended.
///
/// `std::time::Instant` stands still during suspend on Linux: a replica that was suspended for a ttl would not
/// notice.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic;

static START: LazyLock<Duration> = LazyLock::new(since_boot);

impl Monotonic {
    /// The current time. It never goes back. It starts near zero, for readable logs.
    pub fn now() -> Duration {
        let start = *START;
        since_boot().saturating_sub(start)
    }
}

fn since_boot() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    // The kernel's boot time is never negative, and its nanoseconds are below 10^9.
    Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own figure has two decimals.
    #[test]
    fn it_counts_from_the_start_of_the_machine_so_that_nobody_can_set_it() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
            let seconds = text.split(' ').next().and_then(|seconds| seconds.parse().ok());
            Duration::from_secs_f64(seconds.expect("it begins with a number"))
        };
        let rounding = Duration::from_millis(10);
        let (before, now, after) = (uptime(), since_boot(), uptime());
        assert!(before <= now && now <= after + rounding, "{before:?} {now:?} {after:?}");
    }

    #[test]
    fn it_runs_and_never_goes_back() {
        let start = Monotonic::now();
        let mut last = start;
        while last < start + Duration::from_millis(2) {
            let now = Monotonic::now();
            assert!(now >= last);
            last = now;
        }
    }
}
