//! When an era has settled: nobody can still believe in a grant that the database has lost. No I/O, no clock of its own.
//!
//! When a failover loses commits, a program may hold a key by a grant that the new primary never heard of, and believe in
//! it until its ttl is over, counted from its last heartbeat. Such a heartbeat was sent to the database's former history,
//! hence before anybody saw the new one; and in the new one no heartbeat is believed in before what is held was looked at.
//! So a ttl after anybody saw the new era the last such belief is over. Whose ttl nobody knows; it is taken to be no longer
//! than the longest one that the database knows of.

use std::time::Duration;

use super::observer::longest_gap;
use super::{Beat, Epoch};

/// Counts how long an era lasts. [`Client`](super::Client) does that by itself; who sends heartbeats by
/// [`Store::beat`](super::Store::beat) and holds keys by [`Store::try_hold`](super::Store::try_hold) does it as here:
///
/// ```no_run
/// # async fn example(store: leadergroup_lock::Store, own: leadergroup_lock::SessionId) {
/// # use leadergroup_lock::{LockError, Settler, monotonic};
/// # let interval = std::time::Duration::from_secs(1);
/// let mut settler = Settler::new(interval);
/// loop {
///     let sent_at = monotonic();
///     if let Ok(beat) = store.beat(own).await
///         && settler.observe(monotonic(), sent_at, &beat)
///     {
///         // Should this fail the next heartbeat brings it up again.
///         let _: Result<(), LockError> = store.settle(beat.epoch).await;
///     }
///     tokio::time::sleep(interval).await;
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Settler {
    longest_gap: Duration,
    last_receipt: Option<Duration>,
    /// The era that has not settled, and since when it was seen.
    unsettled: Option<(Epoch, Duration)>,
}

impl Settler {
    /// For one that sends a heartbeat about every `retry_interval`; a gap of more than two and a half intervals between two
    /// answers starts the count anew.
    pub fn new(retry_interval: Duration) -> Self {
        Self { longest_gap: longest_gap(retry_interval), last_receipt: None, unsettled: None }
    }

    /// Takes in one answer; `sent_at` and `now` are as for an [`Observer`](super::Observer). Says whether the era has lasted
    /// for the longest ttl of all living sessions, the own one included: then it is to be [settled](super::Store::settle).
    /// Said again until it is.
    pub fn observe(&mut self, now: Duration, sent_at: Duration, beat: &Beat) -> bool {
        let gap = self.last_receipt.is_none_or(|last| now.saturating_sub(last) > self.longest_gap);
        self.last_receipt = Some(now);
        // Without a living session of its own it does not know the own ttl.
        if beat.settled || !beat.alive {
            self.unsettled = None;
            return false;
        }
        let since = match self.unsettled {
            Some((epoch, since)) if !gap && epoch == beat.epoch => since,
            _ => now,
        };
        self.unsettled = Some((beat.epoch, since));
        let living = beat.sessions.iter().filter(|session| !session.dead);
        let longest = living.map(|session| session.ttl).max().unwrap_or(Duration::MAX);
        sent_at.saturating_sub(since) >= longest
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SessionId, SessionSeen};
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Sessions by their ttl, and whether they are dead.
    fn answer(era: u32, settled: bool, sessions: &[(u64, bool)]) -> Beat {
        let own = SessionId::new();
        let seen = |&(ttl, dead): &(u64, bool)| SessionSeen {
            id: SessionId::new(),
            name: "session".into(),
            beat: 1,
            ttl: ms(ttl),
            dead,
        };
        Beat {
            alive: true,
            own,
            sessions: sessions.iter().map(seen).collect(),
            epoch: Epoch { system_identifier: 1, timeline: 1, era },
            settled,
            epoch_changed: false,
        }
    }

    #[test]
    fn an_era_settles_after_the_longest_ttl_from_receipt_to_sending() {
        let mut settler = Settler::new(ms(1_000));
        let beat = answer(1, false, &[(2_000, false), (3_000, false), (60_000, true)]);
        assert!(!settler.observe(ms(1_500), ms(1_000), &beat));
        assert!(!settler.observe(ms(2_500), ms(2_400), &beat));
        assert!(!settler.observe(ms(3_500), ms(3_400), &beat));
        // Received a ttl after that, but sent before: not yet.
        assert!(!settler.observe(ms(4_600), ms(4_499), &beat));
        assert!(settler.observe(ms(5_600), ms(4_500), &beat));
        assert!(settler.observe(ms(6_600), ms(6_500), &beat), "until it is done");
        assert!(!settler.observe(ms(7_600), ms(7_500), &answer(1, true, &[(2_000, false)])));
    }

    #[test]
    fn another_era_a_gap_and_a_longer_ttl_make_it_longer() {
        let mut settler = Settler::new(ms(1_000));
        let mut look = |time: u64, era: u32, ttl: u64| {
            settler.observe(ms(time), ms(time), &answer(era, false, &[(ttl, false)]))
        };
        assert!(![look(0, 1, 2_000), look(1_000, 1, 2_000)].contains(&true));
        assert!(![look(2_000, 2, 2_000), look(3_000, 2, 2_000)].contains(&true), "another era");
        assert!(look(4_000, 2, 2_000));
        assert!(
            ![look(5_000, 2, 6_000), look(7_000, 2, 6_000)].contains(&true),
            "who has just come may have a longer one"
        );
        assert!(look(8_000, 2, 6_000));
        assert!(![look(10_501, 2, 2_000), look(12_500, 2, 2_000)].contains(&true), "a gap");
        assert!(look(12_501, 2, 2_000));
    }

    #[test]
    fn nothing_is_said_without_a_living_session_nor_of_what_has_settled() {
        let mut settler = Settler::new(ms(1_000));
        for time in 0..10 {
            let dead = Beat { alive: false, ..answer(1, false, &[(1_000, false)]) };
            assert!(!settler.observe(ms(time * 1_000), ms(time * 1_000), &dead));
        }
        for time in 10..20 {
            assert!(!settler.observe(
                ms(time * 1_000),
                ms(time * 1_000),
                &answer(1, true, &[(1_000, false)])
            ));
        }
        assert!(
            !settler.observe(ms(20_000), ms(20_000), &answer(1, false, &[(1_000, false)])),
            "counts from now on"
        );
    }
}
