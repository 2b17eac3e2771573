//! The quarantine after lost commits: how long it lasts. No I/O, no clock of its own.
//!
//! A failover may lose commits. A program may then hold a key by a grant that the new primary has lost, and rely on it
//! until its lease ends. That lease rests on a heartbeat that was sent to the former primary, and therefore before any
//! program saw the new era. In the new era, no heartbeat renews a lease before everything that is held was found in the
//! database. So the last such lease has ended one ttl after any program saw the new era. Which program's ttl is
//! unknown, so the longest one in the database counts. Until then, programs' keys get no new holder. (The operator's
//! groups do not wait: their fence is Kubernetes.)

use std::time::Duration;

use crate::protocol::{Beat, EraId};
use crate::session::failure_detector::longest_gap;

/// Measures how long an era has been in quarantine. A [`Client`](crate::Client) does this by itself.
#[derive(Debug, Clone)]
pub struct Quarantine {
    interval: Duration,
    last_receipt: Option<Duration>,
    /// The era in quarantine, and when it was first seen.
    seen: Option<(EraId, Duration)>,
}

impl Quarantine {
    /// For a session that sends a heartbeat about once per `interval`. A gap of more than two and a half intervals
    /// between two answers starts the count again.
    pub fn new(interval: Duration) -> Self {
        Self { interval, last_receipt: None, seen: None }
    }

    /// Processes one answer; `sent_at` and `now` are as for a [`FailureDetector`](crate::protocol::FailureDetector).
    /// Returns true once the quarantine has lasted for the longest ttl of all living sessions:
    /// [end](crate::Store::end_quarantine) it then. Remains true until that is done.
    pub fn observe(&mut self, now: Duration, sent_at: Duration, beat: &Beat) -> bool {
        let gap = self.last_receipt.is_none_or(|last| now.saturating_sub(last) > longest_gap(self.interval));
        self.last_receipt = Some(now);
        // If the own session is dead, there may be no living session, and so no longest ttl.
        let Some(longest) = beat.quarantine.filter(|_| beat.alive) else {
            self.seen = None;
            return false;
        };
        let since = match self.seen {
            Some((era, since)) if !gap && era == beat.era => since,
            _ => now,
        };
        self.seen = Some((beat.era, since));
        sent_at.saturating_sub(since) >= longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The era is in quarantine if there is a longest ttl.
    fn answer(era: u128, longest: Option<u64>) -> Beat {
        Beat {
            alive: true,
            own: SessionId::new(),
            count: 1,
            revoked: 0,
            sessions: Vec::new(),
            era: uuid::Uuid::from_u128(era).into(),
            quarantine: longest.map(ms),
        }
    }

    #[test]
    fn it_is_over_after_the_longest_ttl_from_receipt_to_sending() {
        let mut quarantine = Quarantine::new(ms(1_000));
        let beat = answer(1, Some(3_000));
        assert!(!quarantine.observe(ms(1_500), ms(1_000), &beat));
        assert!(!quarantine.observe(ms(2_500), ms(2_400), &beat));
        assert!(!quarantine.observe(ms(3_500), ms(3_400), &beat));
        // Received a ttl after that, but sent before: not yet.
        assert!(!quarantine.observe(ms(4_600), ms(4_499), &beat));
        assert!(quarantine.observe(ms(5_600), ms(4_500), &beat));
        assert!(quarantine.observe(ms(6_600), ms(6_500), &beat), "until it is done");
        assert!(!quarantine.observe(ms(7_600), ms(7_500), &answer(1, None)));
    }

    #[test]
    fn another_era_a_gap_and_a_longer_ttl_make_it_longer() {
        let mut quarantine = Quarantine::new(ms(1_000));
        let mut look =
            |time: u64, era: u128, ttl: u64| quarantine.observe(ms(time), ms(time), &answer(era, Some(ttl)));
        assert!(![look(0, 1, 2_000), look(1_000, 1, 2_000)].contains(&true));
        assert!(![look(2_000, 2, 2_000), look(3_000, 2, 2_000)].contains(&true), "another era");
        assert!(look(4_000, 2, 2_000));
        assert!(
            ![look(5_000, 2, 6_000), look(7_000, 2, 6_000)].contains(&true),
            "a session that has just come may have a longer ttl"
        );
        assert!(look(8_000, 2, 6_000));
        assert!(![look(10_501, 2, 2_000), look(12_500, 2, 2_000)].contains(&true), "a gap");
        assert!(look(12_501, 2, 2_000));
    }

    #[test]
    fn it_is_not_counted_without_a_living_session_nor_in_an_era_that_is_open() {
        let mut quarantine = Quarantine::new(ms(1_000));
        for time in 0..10 {
            let dead = Beat { alive: false, ..answer(1, Some(1_000)) };
            assert!(!quarantine.observe(ms(time * 1_000), ms(time * 1_000), &dead));
        }
        for time in 10..20 {
            assert!(!quarantine.observe(ms(time * 1_000), ms(time * 1_000), &answer(1, None)));
        }
        assert!(!quarantine.observe(ms(20_000), ms(20_000), &answer(1, Some(1_000))), "counts from now on");
    }
}
