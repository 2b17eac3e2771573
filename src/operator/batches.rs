//! When groups may be given to the replicas that they fall to: batch by batch.

use std::time::Duration;

/// The time between two batches if other replicas claimed no group of the first one.
const UNTAKEN_PAUSE: Duration = Duration::from_mins(1);

/// The batches of groups that this replica gives away.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// When the last one was given.
    given_at: Option<Duration>,
    /// Whether another replica has claimed a group since then.
    taken: bool,
}

impl Batches {
    pub(super) fn given(&mut self, now: Duration) {
        (self.given_at, self.taken) = (Some(now), false);
    }

    /// Another replica has claimed a group that was given to it.
    pub(super) fn taken(&mut self) {
        self.taken = true;
    }

    /// Whether another batch may be given. `unanswered`: it is not known yet who claims some group of the last one.
    pub(super) fn allow_another(
        &self,
        unanswered: bool,
        ttl: Duration,
        living_since: Duration,
        now: Duration,
    ) -> bool {
        match self.given_at {
            None => true,
            Some(at) if unanswered && now < at + ttl => false,
            Some(at) => self.taken || at < living_since || now >= at + UNTAKEN_PAUSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_batch_waits_for_the_last_one_and_longer_if_nobody_took_it() {
        let s = Duration::from_secs;
        let mut batches = Batches::default();
        let allows = |batches: &Batches, unanswered, now| {
            batches.allow_another(unanswered, s(4), Duration::ZERO, s(now))
        };
        assert!(allows(&batches, false, 100));
        batches.given(s(100));
        assert!(!allows(&batches, true, 101));
        batches.taken();
        assert!(allows(&batches, false, 102));
        assert!(!allows(&batches, true, 103));
        assert!(allows(&batches, true, 104), "one of it is never answered for: it can no longer be decoded");
        batches.given(s(104));
        assert!(!allows(&batches, false, 107) && !allows(&batches, false, 163), "nobody took one");
        assert!(allows(&batches, false, 164));
        assert!(batches.allow_another(false, s(4), s(105), s(109)), "other replicas have come");
    }
}
