//! The lease: for how long a process may rely on its session being alive. No I/O.

use std::time::Duration;

use crate::{SessionId, protocol::EraId};

/// The session's lease, as its own process counts it.
///
/// It ends at the *start* of the last successful heartbeat plus the ttl, less a margin for clocks that run at different
/// rates. No other process can have marked the session dead before that. See Gray and Cheriton, "Leases" (1989).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) session: SessionId,
    /// The number of heartbeats that the database has counted.
    pub(crate) beat: u64,
    /// The era of the last answer about the session.
    pub(crate) era: EraId,
    /// Whether everything that is held was found in that era. Until then, its heartbeats do not renew the lease.
    pub(crate) reconciled: bool,
    /// How long the quarantine of that era lasts, if it is in one.
    pub(crate) quarantine: Option<Duration>,
    /// Whether the process was closed: no other session and no more heartbeats follow.
    pub(crate) closed: bool,
    lasts: Duration,
    until: Option<Duration>,
}

/// By how much a lease is shorter than the ttl, to allow for clocks that run at different rates and for the time to
/// react. A fifth, and never less than the granularity of the timers.
pub(crate) fn margin(ttl: Duration) -> Duration {
    (ttl / 5).max(Duration::from_millis(10))
}

impl Lease {
    /// The lease of a session whose registration was sent at `sent`: no one can have watched it before that.
    pub(crate) fn begin(session: SessionId, era: EraId, ttl: Duration, sent: Duration) -> Self {
        let lasts = ttl.saturating_sub(margin(ttl));
        let until = Some(sent + lasts);
        Self { session, beat: 1, era, reconciled: true, quarantine: None, closed: false, lasts, until }
    }

    /// A heartbeat that was *started* at `attempt` was answered in this era. Returns whether it renews the lease. It
    /// does not if the lease has ended: the guards have already reported the loss. Nor does it if it is from an era
    /// that was not reconciled.
    pub(crate) fn renew(&mut self, session: SessionId, attempt: Duration, era: EraId, now: Duration) -> bool {
        let counts = self.covers(session, now) && self.reconciled && self.era == era;
        if counts {
            let until = attempt + self.lasts;
            self.until = self.until.map(|before| before.max(until));
        }
        counts
    }

    /// The time between the end of the lease and the moment when others can take the keys.
    pub(crate) fn margin(&self) -> Duration {
        margin(self.lasts + self.lasts / 4)
    }

    /// How long it lasts from a renewal.
    pub(crate) fn lasts(&self) -> Duration {
        self.lasts
    }

    /// Ends the lease: the session is dead, or was closed.
    pub(crate) fn end(&mut self) {
        self.until = None;
    }

    /// Whether it is certain at `now` that this session still holds its keys.
    pub(crate) fn covers(&self, session: SessionId, now: Duration) -> bool {
        self.session == session && self.until.is_some_and(|until| now < until)
    }

    /// Whether requests use this session: it may be dead already, but no other one has replaced it.
    pub(crate) fn serves(&self, session: SessionId) -> bool {
        self.session == session && !self.closed
    }

    /// When it ends; `None` once it has.
    pub(crate) fn until(&self) -> Option<Duration> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: fn(u64) -> Duration = Duration::from_secs;

    fn lease(ttl: u64, attempt: u64) -> Lease {
        Lease::begin(SessionId::new(), EraId::new(), SECOND(ttl), SECOND(attempt))
    }

    impl Lease {
        fn renewed(&mut self, attempt: u64) {
            let at = SECOND(attempt);
            assert!(self.renew(self.session, at, self.era, at));
        }
    }

    #[test]
    fn it_lasts_from_the_start_of_the_attempt_and_never_shrinks_by_a_late_answer() {
        let mut lease = lease(5, 10);
        let covers = |lease: &Lease, millis| lease.covers(lease.session, Duration::from_millis(millis));
        assert!(covers(&lease, 10_000) && covers(&lease, 13_999) && !covers(&lease, 14_000));
        lease.renewed(12);
        lease.renewed(11);
        assert_eq!(lease.until(), Some(SECOND(16)));
        assert!(lease.renew(lease.session, SECOND(13), lease.era, SECOND(15)));
        assert_eq!(lease.until(), Some(SECOND(17)), "from the start of the attempt, not from its answer");
        lease.end();
        assert!(!covers(&lease, 12_000));
        assert!(!lease.covers(SessionId::new(), SECOND(10)), "another session's lease");
    }

    #[test]
    fn a_late_answer_another_era_and_another_session_do_not_renew_it() {
        let lease = lease(5, 10);
        let renew = |mut lease: Lease, session, era, now| lease.renew(session, SECOND(11), era, SECOND(now));
        assert!(renew(lease, lease.session, lease.era, 12));
        assert!(!renew(lease, lease.session, lease.era, 14));
        assert!(!renew(lease, lease.session, EraId::new(), 12));
        assert!(!renew(lease, SessionId::new(), lease.era, 12));
        assert!(!renew(Lease { reconciled: false, ..lease }, lease.session, lease.era, 12));
    }

    #[test]
    fn a_ttl_below_the_margin_is_no_lease() {
        let lease = Lease::begin(SessionId::new(), EraId::new(), Duration::from_millis(9), SECOND(10));
        assert!(!lease.covers(lease.session, SECOND(10)));
    }
}
