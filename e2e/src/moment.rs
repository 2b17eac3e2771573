//! Points in time that can be compared between processes of one machine.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// A point in time on the machine's monotonic clock. Processes of one machine read the same clock, so a moment
/// recorded by a client process can be compared with one recorded by the test when it cut the power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `later` after this one.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The moment `earlier` before this one.
    #[must_use]
    pub fn minus(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(earlier.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1000)
    }
}

impl From<std::time::Instant> for Moment {
    /// The same moment: `Instant` reads the same clock, but does not expose its value.
    fn from(instant: std::time::Instant) -> Self {
        let now = Self::now();
        Self(now.0.saturating_sub(u64::try_from(instant.elapsed().as_nanos()).unwrap_or(u64::MAX)))
    }
}
