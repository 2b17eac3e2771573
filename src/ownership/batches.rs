//! How many groups are given away at a time, and when: batch by batch.

use std::time::Duration;

use super::event::{Replica, Room};

/// The most groups that are given away for one reason at a heartbeat. They are without an owner until the next replica
/// has claimed them, usually for some milliseconds.
const MOST_AT_ONCE: usize = 50;
/// The time between two batches if other replicas claimed no group of the first one.
const UNTAKEN_PAUSE: Duration = Duration::from_mins(1);

/// The batches of groups that this replica gives to those that they fall to.
#[derive(Debug, Default)]
pub struct Batches {
    /// When the last one was given.
    given_at: Option<Duration>,
    /// Whether another replica has claimed a group since then.
    taken: bool,
}

impl Batches {
    /// A batch was given away.
    pub fn given(&mut self, now: Duration) {
        (self.given_at, self.taken) = (Some(now), false);
    }

    /// Another replica has claimed a group that was given to it.
    pub fn taken(&mut self) {
        self.taken = true;
    }

    /// What may be given away now. `unanswered`: it is not known yet who claims some group of the last batch.
    ///
    /// Nothing is given while replicas come and go, except to one that hears the holder: a replica that has just joined
    /// first lists its objects and probes its pods. Nothing is given soon after an outage of the database either: a
    /// replica that receives no notifications yet does not learn that a group is free, and the group would have no
    /// owner until it does.
    pub fn room(&self, unanswered: bool, replica: Replica<'_>, now: Duration) -> Room {
        let Replica { sessions, ttl, .. } = replica;
        let rested = |since: Duration| now >= since + ttl;
        let steady = sessions.answers_since().is_some_and(rested) && rested(sessions.living_since());
        let next = match self.given_at {
            None => true,
            Some(at) if unanswered && now < at + ttl => false,
            Some(at) => self.taken || at < sessions.living_since() || now >= at + UNTAKEN_PAUSE,
        };
        let most = |may: bool| if may { MOST_AT_ONCE } else { 0 };
        Room::for_each_reason([most(steady && next), MOST_AT_ONCE, most(steady)])
    }
}

#[cfg(test)]
mod tests {
    use leadergroup_lock::{SessionId, controller::Peer};

    use super::*;
    use crate::ownership::{Sessions, Why};

    const TTL: Duration = Duration::from_secs(4);

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Sessions that are the same since this time, as is the database's answering.
    fn since(seconds: u64) -> Sessions {
        let (mut sessions, own) = (Sessions::default(), SessionId::new());
        sessions.beat(own, vec![Peer { session: own, place: None }], Vec::new(), (s(seconds), s(seconds)));
        sessions
    }

    fn allows(batches: &Batches, unanswered: bool, sessions: &Sessions, now: u64) -> bool {
        let replica = Replica { sessions, ttl: TTL, stopping: false };
        batches.room(unanswered, replica, s(now)).has(Why::FallsElsewhere)
    }

    #[test]
    fn the_next_batch_waits_for_the_last_one_and_longer_if_nobody_took_it() {
        let (mut batches, old) = (Batches::default(), since(0));
        assert!(allows(&batches, false, &old, 100));
        batches.given(s(100));
        assert!(!allows(&batches, true, &old, 101));
        batches.taken();
        assert!(allows(&batches, false, &old, 102));
        assert!(!allows(&batches, true, &old, 103));
        assert!(
            allows(&batches, true, &old, 104),
            "one of it is never answered for: it can no longer be decoded"
        );
        batches.given(s(104));
        assert!(
            !allows(&batches, false, &old, 107) && !allows(&batches, false, &old, 163),
            "nobody took one"
        );
        assert!(allows(&batches, false, &old, 164));
        assert!(allows(&batches, false, &since(105), 109), "other replicas have come");
    }

    #[test]
    fn nothing_is_given_while_replicas_come_and_go_or_soon_after_an_outage() {
        let batches = Batches::default();
        assert!(!allows(&batches, false, &since(97), 100) && allows(&batches, false, &since(96), 100));
        let (mut sessions, own) = (since(0), SessionId::new());
        sessions.beat(own, vec![Peer { session: own, place: None }], Vec::new(), (s(10), s(10)));
        sessions.down(TTL, s(50));
        assert!(!allows(&batches, false, &sessions, 60), "the database is away");
        sessions.beat(own, vec![Peer { session: own, place: None }], Vec::new(), (s(97), s(97)));
        assert!(!allows(&batches, false, &sessions, 100) && allows(&batches, false, &sessions, 101));
    }
}
