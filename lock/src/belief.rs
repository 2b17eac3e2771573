//! How long a process may believe that its own session lives. No I/O.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time of a clock that never jumps and goes on while the machine is suspended, counted from some fixed moment
/// (the boot). `std::time::Instant` stops during suspend and would let a process that wakes up believe in a lock it lost.
pub fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither part of this clock is ever negative, and nanoseconds stay below a second.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The own session's lease as its holder sees it: it ends at the start of the last successful heartbeat's *attempt* plus
/// the ttl, less a margin for clocks that run at different rates. Nobody else can have marked the session dead before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Belief {
    lasts: Duration,
    until: Option<Duration>,
}

impl Belief {
    /// Nothing is believed before the first [`renewed`](Self::renewed).
    pub fn new(ttl: Duration, margin: Duration) -> Self {
        Self { lasts: ttl.saturating_sub(margin), until: None }
    }

    /// From the next renewal on it lasts for another ttl. A shorter one shortens what is believed already, at once.
    pub fn set_ttl(&mut self, ttl: Duration, margin: Duration) {
        let lasts = ttl.saturating_sub(margin);
        let less = self.lasts.saturating_sub(lasts);
        self.until = self.until.map(|until| until.saturating_sub(less));
        self.lasts = lasts;
    }

    /// A registration or heartbeat that was *started* at `attempt` has succeeded.
    pub fn renewed(&mut self, attempt: Duration) {
        let until = attempt + self.lasts;
        self.until = Some(self.until.map_or(until, |before| before.max(until)));
    }

    /// For how long it lasts from a renewal on.
    pub fn lasts(&self) -> Duration {
        self.lasts
    }

    /// The session is known to be dead or was closed.
    pub fn lost(&mut self) {
        self.until = None;
    }

    /// Whether the session surely lives at `now`.
    pub fn holds(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Until when it surely lives; `None` if it is not believed in at all.
    pub fn until(&self) -> Option<Duration> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belief_lasts_from_the_attempt_s_start_and_never_shrinks_by_a_late_answer() {
        let second = Duration::from_secs;
        let mut belief = Belief::new(second(5), second(1));
        assert!(!belief.holds(second(0)));
        belief.renewed(second(10));
        assert!(belief.holds(second(10)) && belief.holds(Duration::from_millis(13_999)));
        assert!(!belief.holds(second(14)));
        belief.renewed(second(12));
        belief.renewed(second(11));
        assert_eq!(belief.until(), Some(second(16)));
        belief.lost();
        assert!(!belief.holds(second(12)));
    }

    #[test]
    fn a_shorter_ttl_counts_at_once_and_a_longer_one_from_the_next_renewal() {
        let second = Duration::from_secs;
        let mut belief = Belief::new(second(10), second(2));
        belief.renewed(second(100));
        belief.set_ttl(second(5), second(1));
        assert_eq!(belief.until(), Some(second(104)));
        belief.set_ttl(second(20), second(4));
        assert_eq!(belief.until(), Some(second(104)));
        belief.renewed(second(101));
        assert_eq!(belief.until(), Some(second(117)));
        belief.set_ttl(second(0), second(0));
        assert!(!belief.holds(second(101)));
    }

    #[test]
    fn a_margin_above_the_ttl_leaves_no_belief() {
        let mut belief = Belief::new(Duration::from_secs(1), Duration::from_secs(2));
        belief.renewed(Duration::from_secs(10));
        assert!(!belief.holds(Duration::from_secs(10)));
    }

    #[test]
    fn the_clock_goes_on() {
        let before = monotonic();
        assert!(before > Duration::ZERO);
        assert!(monotonic() >= before);
    }
}
