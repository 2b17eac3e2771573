//! The clock that this crate uses everywhere.

#[cfg(feature = "memory")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The clock that a [`Store`](crate::Store), and the sessions on it, measure time with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Copy, Default)]
enum Source {
    #[default]
    Boottime,
    #[cfg(feature = "memory")]
    Simulated {
        origin: tokio::time::Instant,
        offset: Duration,
        rate_ppm: i32,
        suspended: Option<&'static Suspended>,
    },
}

/// For how long a simulated machine has been suspended: tokio's time stood still, and a clock that
/// [counts](Clock::counting) it went on.
#[cfg(feature = "memory")]
#[derive(Debug, Default)]
pub struct Suspended(AtomicU64);

#[cfg(feature = "memory")]
impl Suspended {
    /// The machine was suspended for this much longer, as its clock shows it. Whole microseconds count.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn total(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl Clock {
    /// The machine's clock that never jumps and keeps running while the machine is suspended: `CLOCK_BOOTTIME` on
    /// Linux, `CLOCK_MONOTONIC` on macOS, the performance counter on Windows. On other Unix systems it is
    /// `CLOCK_MONOTONIC` as well, which may stand still during suspend there: do not suspend such a machine.
    ///
    /// `std::time::Instant` stands still during suspend on Linux and macOS: after it, a process would still treat a
    /// lock as held that it has lost.
    pub const fn boottime() -> Self {
        Self(Source::Boottime)
    }

    /// A clock that shows `offset` now and follows tokio's time, which a test can pause. It gains `rate_ppm`
    /// microseconds per second, or loses them if that is negative.
    #[cfg(feature = "memory")]
    pub fn simulated(rate_ppm: i32, offset: Duration) -> Self {
        let origin = tokio::time::Instant::now();
        Self(Source::Simulated { origin, offset, rate_ppm, suspended: None })
    }

    /// The same clock, if it is simulated, which also shows the time in which its machine has been suspended. Another
    /// clock shows that by itself.
    #[cfg(feature = "memory")]
    #[must_use]
    pub fn counting(self, suspended: &'static Suspended) -> Self {
        match self.0 {
            Source::Boottime => self,
            Source::Simulated { origin, offset, rate_ppm, .. } => {
                Self(Source::Simulated { origin, offset, rate_ppm, suspended: Some(suspended) })
            }
        }
    }

    /// The time that it shows.
    pub fn now(self) -> Duration {
        match self.0 {
            Source::Boottime => boottime(),
            #[cfg(feature = "memory")]
            Source::Simulated { origin, offset, rate_ppm, suspended } => {
                let suspended = suspended.map(Suspended::total).unwrap_or_default();
                offset + at_rate(origin.elapsed(), rate_ppm) + suspended
            }
        }
    }
}

#[cfg(unix)]
fn boottime() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    // Neither part of this clock is ever negative, and nanoseconds stay below a second.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The performance counter, which Rust's `Instant` reads there, also counts the time in which the machine is suspended.
#[cfg(windows)]
fn boottime() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;

    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Never zero, as on the other systems.
    ORIGIN.elapsed() + Duration::from_secs(1)
}

/// What a clock of this rate shows after a time.
#[cfg(feature = "memory")]
fn at_rate(time: Duration, rate_ppm: i32) -> Duration {
    const MILLION: i64 = 1_000_000;
    // A clock does not go back, so the slowest one stands still.
    let rate = u128::from((MILLION + i64::from(rate_ppm)).max(0).unsigned_abs());
    let nanos = time.as_nanos() * rate / u128::from(MILLION.unsigned_abs());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The time of the clock by which leases are counted: one that never jumps and keeps running while the machine is
/// suspended (`CLOCK_BOOTTIME` on Linux). Every store but one in memory uses it.
pub fn monotonic() -> Duration {
    Clock::boottime().now()
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

    #[cfg(feature = "memory")]
    #[tokio::test(start_paused = true)]
    async fn a_simulated_clock_follows_paused_time_at_its_own_rate() {
        let (right, fast, slow) = (
            Clock::simulated(0, Duration::ZERO),
            Clock::simulated(500, Duration::from_secs(7)),
            Clock::simulated(-500, Duration::ZERO),
        );
        tokio::time::advance(Duration::from_secs(1_000)).await;
        let shown = [right, fast, slow].map(|clock| clock.now().as_millis());
        assert_eq!(shown, [1_000_000, 1_007_500, 999_500]);
    }

    #[cfg(feature = "memory")]
    #[tokio::test(start_paused = true)]
    async fn a_simulated_clock_shows_the_time_in_which_its_machine_was_suspended_and_a_timer_does_not() {
        let suspended: &'static Suspended = Box::leak(Box::default());
        let clock = Clock::simulated(0, Duration::ZERO).counting(suspended);
        let timer = tokio::time::Instant::now();
        suspended.add(Duration::from_secs(40));
        tokio::time::advance(Duration::from_secs(2)).await;
        suspended.add(Duration::from_secs(1));
        assert_eq!((clock.now().as_secs(), timer.elapsed().as_secs()), (43, 2));
    }
}
