//! Judges by observation, on the own monotonic clock, whether other sessions have expired. No I/O, no clock of its own.
//!
//! A session has expired if its heartbeat counter has not changed for the session's ttl, measured from the *receipt* of
//! the first answer that showed it to the *sending* of a later question that found it unchanged. Both ends err on the
//! session's side, and the database's clock plays no part. After a time in which the observer itself did not reach the
//! database, the others may not have reached it either: all windows start again. They also start again when the
//! database may have lost commits.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{
    SessionId,
    protocol::{Beat, EraId},
};

/// Watches the heartbeat counters of other sessions.
#[derive(Debug, Clone)]
pub struct FailureDetector {
    interval: Duration,
    last_sent: Duration,
    last_receipt: Option<Duration>,
    era: Option<EraId>,
    seen: BTreeMap<SessionId, Window>,
}

/// If two answers are further apart than this, they say nothing about the time in between.
pub(crate) fn longest_gap(interval: Duration) -> Duration {
    interval * 5 / 2
}

/// Since when a counter has been seen unchanged.
#[derive(Debug, Clone, Copy)]
struct Window {
    beat: u64,
    since: Duration,
    ttl: Duration,
    /// Unchanged for longer than a living session leaves it unchanged, short pauses included.
    suspect: bool,
}

impl FailureDetector {
    /// A detector for an observer that sends a heartbeat about once per `interval`. A gap of more than two and a half
    /// intervals between two answers starts all windows again.
    pub fn new(interval: Duration) -> Self {
        Self { interval, last_sent: Duration::ZERO, last_receipt: None, era: None, seen: BTreeMap::new() }
    }

    /// Processes one answer. `sent_at` and `now` are when the question was sent and the answer received, on one
    /// monotonic clock that keeps running while the machine sleeps ([`monotonic`](crate::monotonic)). Returns the
    /// sessions that have expired, with the counter by which to mark them dead. Each later call returns them again
    /// until an answer shows them dead or with another counter.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leadergroup_lock::{SessionId, protocol::{Beat, EraId, FailureDetector, SessionSeen}};
    /// let (own, other, era) = (SessionId::new(), SessionId::new(), EraId::new());
    /// let beat = |count| Beat {
    ///     alive: true,
    ///     own,
    ///     count: 1,
    ///     revoked: 0,
    ///     sessions: vec![SessionSeen {
    ///         id: other,
    ///         beat: count,
    ///         ttl: Duration::from_secs(2),
    ///         dead: false,
    ///         peer: false,
    ///         place: None,
    ///     }],
    ///     era,
    ///     quarantine: None,
    /// };
    /// let mut detector = FailureDetector::new(Duration::from_secs(1));
    /// let second = Duration::from_secs;
    /// assert!(detector.observe(second(10), second(10), &beat(7)).is_empty());
    /// assert!(detector.observe(second(11), second(11), &beat(8)).is_empty());
    /// assert!(detector.observe(second(12), second(12), &beat(8)).is_empty());
    /// assert_eq!(detector.observe(second(13), second(13), &beat(8)), [(other, 8)]);
    /// ```
    pub fn observe(&mut self, now: Duration, sent_at: Duration, beat: &Beat) -> Vec<(SessionId, u64)> {
        // In another era, heartbeats may be missing that their senders count as successful.
        let gap = self.last_receipt.is_none_or(|last| now.saturating_sub(last) > longest_gap(self.interval))
            || self.era != Some(beat.era);
        self.last_sent = sent_at;
        self.last_receipt = Some(now);
        self.era = Some(beat.era);
        let mut expired = Vec::new();
        let mut seen = BTreeMap::new();
        for session in beat.sessions.iter().filter(|session| !session.dead && session.id != beat.own) {
            let since = match self.seen.get(&session.id) {
                Some(window) if !gap && window.beat == session.beat => window.since,
                _ => now,
            };
            let unchanged_for = sent_at.saturating_sub(since);
            if unchanged_for >= session.ttl {
                expired.push((session.id, session.beat));
            }
            let suspect = unchanged_for >= self.interval * 3 / 2;
            seen.insert(session.id, Window { beat: session.beat, since, ttl: session.ttl, suspect });
        }
        self.seen = seen;
        expired
    }

    /// Sessions that seem to have stopped, but not yet for their ttl: time to prepare for a takeover.
    pub fn suspects(&self) -> impl Iterator<Item = SessionId> {
        self.seen.iter().filter(|(_, window)| window.suspect).map(|(id, _)| *id)
    }

    /// The latest time to ask next, so that a suspect's end is noticed in time. It may have passed already, if the
    /// window ended while the last answer was on its way.
    pub fn next_expiry(&self) -> Option<Duration> {
        let suspects = self.seen.values().filter(|window| window.suspect);
        suspects.map(|window| window.since + window.ttl).filter(|at| *at > self.last_sent).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::SessionSeen;
    use crate::session::lease::Lease;

    const R: u64 = 1_000;
    const TTL: u64 = 3_000;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn answer(own: SessionId, others: &[(SessionId, u64, bool)]) -> Beat {
        let session = |&(id, beat, dead): &(SessionId, u64, bool)| SessionSeen {
            id,
            beat,
            ttl: ms(TTL),
            dead,
            peer: false,
            place: None,
        };
        Beat {
            alive: true,
            own,
            count: 1,
            revoked: 0,
            sessions: others.iter().map(session).collect(),
            era: uuid::Uuid::nil().into(),
            quarantine: None,
        }
    }

    #[test]
    fn a_window_runs_from_receipt_to_sending() {
        let (own, other) = (SessionId::new(), SessionId::new());
        let mut detector = FailureDetector::new(ms(R));
        let beat = answer(own, &[(other, 7, false)]);
        // The first answer was received at 1,500: the window begins there, not when the question was sent.
        assert_eq!(detector.observe(ms(1_500), ms(1_000), &beat), []);
        assert_eq!(detector.observe(ms(2_600), ms(2_500), &beat), []);
        assert_eq!(detector.observe(ms(3_600), ms(3_500), &beat), []);
        // Received a ttl after that, but sent before: not yet.
        assert_eq!(detector.observe(ms(4_600), ms(4_499), &beat), []);
        assert_eq!(detector.observe(ms(4_700), ms(4_650), &beat), [(other, 7)]);
        assert_eq!(detector.observe(ms(5_700), ms(5_650), &beat), [(other, 7)], "until it is seen dead");
        assert_eq!(detector.observe(ms(6_700), ms(6_650), &answer(own, &[(other, 7, true)])), []);
    }

    #[test]
    fn what_stands_still_is_suspected_and_asked_about_on_time() {
        let (own, other) = (SessionId::new(), SessionId::new());
        let mut detector = FailureDetector::new(ms(R));
        let beat = |count| answer(own, &[(other, count, false)]);
        detector.observe(ms(1_000), ms(1_000), &beat(7));
        detector.observe(ms(2_000), ms(2_000), &beat(7));
        assert_eq!((detector.suspects().count(), detector.next_expiry()), (0, None), "one beat may be late");
        detector.observe(ms(3_000), ms(3_000), &beat(7));
        assert_eq!(detector.suspects().collect::<Vec<_>>(), [other]);
        assert_eq!(detector.next_expiry(), Some(ms(1_000 + TTL)));
        detector.observe(ms(3_500), ms(3_500), &beat(8));
        assert_eq!((detector.suspects().count(), detector.next_expiry()), (0, None), "it beats again");
    }

    #[test]
    fn a_gap_in_the_own_polling_starts_all_windows_again() {
        let (own, other) = (SessionId::new(), SessionId::new());
        let beat = answer(own, &[(other, 7, false)]);
        let mut detector = FailureDetector::new(ms(R));
        for time in [0, 1_000, 2_000] {
            assert_eq!(detector.observe(ms(time), ms(time), &beat), []);
        }
        // No session could reach the database for a while; the next answer must not condemn the others.
        assert_eq!(detector.observe(ms(4_501), ms(4_501), &beat), []);
        for time in [5_501, 6_501, 7_500] {
            assert_eq!(detector.observe(ms(time), ms(time), &beat), []);
        }
        assert_eq!(detector.observe(ms(7_501), ms(7_501), &beat), [(other, 7)]);
        // One question that took long is a gap, too, even though it was sent in time.
        let mut detector = FailureDetector::new(ms(R));
        assert_eq!(detector.observe(ms(0), ms(0), &beat), []);
        assert_eq!(detector.observe(ms(3_600), ms(1_000), &beat), []);
        assert_eq!(detector.observe(ms(3_700), ms(3_650), &beat), []);
    }

    #[test]
    fn the_own_session_dead_ones_and_new_ones_are_not_expired() {
        let (own, dead, late) = (SessionId::new(), SessionId::new(), SessionId::new());
        let mut detector = FailureDetector::new(ms(R));
        for time in (0..=10_000).step_by(1_000) {
            let mut sessions = vec![(own, 1, false), (dead, 1, true)];
            if time >= 8_000 {
                sessions.push((late, 1, false));
            }
            assert_eq!(detector.observe(ms(time), ms(time), &answer(own, &sessions)), [], "at {time}");
        }
    }

    /// One poll or heartbeat: the pause before it, how long it takes, and when within that the database acts.
    fn step(longest: u64) -> impl Strategy<Value = (u64, u64, u64)> {
        (1..longest, 0..longest).prop_flat_map(|(pause, takes)| (Just(pause), Just(takes), 0..=takes))
    }

    proptest! {
        /// Whatever the timing and duration of polls and heartbeats: a session that has expired has not beaten for its
        /// ttl, and its own lease had ended before the question that condemned it was sent.
        #[test]
        fn nobody_is_expired_who_still_believes(
            polls in prop::collection::vec(step(2_000), 1..60),
            beats in prop::collection::vec(step(3_500), 1..40),
        ) {
            let (own, other) = (SessionId::new(), SessionId::new());
            let mut time = 0;
            // When each heartbeat was started and when it took effect.
            let mut history = vec![(0, 0)];
            for (pause, takes, effect) in beats {
                let start = time + pause;
                history.push((start, start + effect));
                time = start + takes;
            }
            let mut detector = FailureDetector::new(ms(R));
            let mut time = 0;
            let mut last_receipt = None;
            for (pause, takes, effect) in polls {
                let sent = time + pause;
                time = sent + takes;
                let seen = history.iter().filter(|(_, at)| *at <= sent + effect).count();
                let (started, at) = history[seen - 1];
                let expired = detector.observe(ms(time), ms(sent), &answer(own, &[(other, seen as u64, false)]));
                if !expired.is_empty() {
                    prop_assert!(sent >= at + TTL, "beat at {at}, condemned by a question sent at {sent}");
                    let lease = Lease::begin(other, uuid::Uuid::nil().into(), ms(TTL), ms(started));
                    prop_assert!(!lease.covers(other, ms(sent)));
                    prop_assert!(last_receipt.is_some_and(|last| time - last <= R * 5 / 2), "condemned after a gap");
                }
                last_receipt = Some(time);
            }
        }

        /// With regular polls, and one when a window ends, a session that stopped is noticed within its ttl, one
        /// interval and the time of three answers: the first that shows its last beat, one that is on its way when the
        /// window ends, and the one that is asked for then.
        #[test]
        fn a_death_is_noticed_in_time(phase in 0..R, takes in 0..R / 4, dies_after in 0..20_u64) {
            let (own, other) = (SessionId::new(), SessionId::new());
            let last_beat = dies_after * R + phase;
            let mut detector = FailureDetector::new(ms(R));
            let mut sent = 0;
            let noticed = loop {
                let received = sent + takes;
                let count = if sent < phase { 0 } else { ((sent - phase) / R).min(dies_after) + 1 };
                let seen = answer(own, &[(other, count, false)]);
                if !detector.observe(ms(received), ms(sent), &seen).is_empty() {
                    break received;
                }
                let regular = (sent / R + 1) * R;
                let due = detector.next_expiry().map_or(ms(regular), |at| at.min(ms(regular)));
                sent = u64::try_from(due.as_millis()).unwrap_or(u64::MAX).max(received);
            };
            let bound = last_beat + TTL + R + 3 * takes;
            prop_assert!(noticed <= bound && noticed >= last_beat + TTL, "{noticed}, bound {bound}");
        }
    }
}
