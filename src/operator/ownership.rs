//! Which replica owns a group, and when this replica asks for it.
//!
//! The replica that owns a group runs its election. Whether that is this replica is recorded in one place, the group's
//! election ([`election::Group::is_owned`](crate::election::Group::is_owned)). Here is what is known of the owner
//! otherwise.

use std::{sync::Arc, time::Duration};

use super::{assignment::falls_to, claim::Answer, keys::KeyRefusal, lock_view::LockView, trouble::Trouble};
use leadergroup_lock::{Claimed, Key, SessionId};

/// How soon a refused claim is made again, and how soon a group that was handed over is claimed back if it is still
/// free.
pub(super) const RECLAIM: Duration = Duration::from_secs(5);

/// Which replica owns a group, as far as this one knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// This replica.
    Ours,
    /// None, or it is not known: the group is to be claimed.
    Unowned,
    /// This replica has sent a claim.
    Claiming,
    /// The replica with this session.
    Other(SessionId),
    /// The lock's row belongs to this other group.
    Foreign(Arc<str>),
    /// None: the group may not take its key.
    Refused(KeyRefusal),
}

/// What the answers to claims have said of a group's owner, other than this replica.
#[derive(Debug)]
pub(super) struct Claims {
    last: Ownership,
    /// This replica owned the group last, as far as it knows.
    was_ours: bool,
    /// The owner may have given the group up since the last claim was sent.
    doubted: bool,
    /// When the next claim may be made.
    after: Duration,
    /// Since when the group has had no owner, as far as this replica knows.
    open_since: Option<Duration>,
    /// This replica gave the group to another one, and does not know yet whether that one took it.
    given: bool,
    /// Until when this replica, which hears the holder, claims the group as soon as it is free.
    offered_until: Duration,
}

impl Default for Claims {
    fn default() -> Self {
        Self {
            last: Ownership::Unowned,
            was_ours: false,
            doubted: false,
            after: Duration::ZERO,
            open_since: None,
            given: false,
            offered_until: Duration::ZERO,
        }
    }
}

impl Claims {
    /// The owner of a group that this replica does not own.
    pub(super) fn owner(&self) -> &Ownership {
        &self.last
    }

    /// Whether this replica owned the group last, as far as it knows.
    pub(super) fn was_ours(&self) -> bool {
        self.was_ours
    }

    /// Whether to claim the group with this key now, whose holder is on this node. To be called once a heartbeat, for a
    /// group that this replica does not own. After `patience` it is no longer left to the replica that it falls to.
    /// This is a time and not a number of heartbeats, because each group that is given up causes an extra one.
    ///
    /// A replica that is deaf to the holder does not take a group that an owner which still lives gave up, only because
    /// the group falls to it. It waits twice as long, so that this owner takes it back.
    pub(super) fn due(
        &mut self,
        key: &Key,
        holder_node: Option<&str>,
        deaf: bool,
        lock: &LockView,
        patience: Duration,
        now: Duration,
    ) -> bool {
        if let Ownership::Other(session) = self.last {
            if lock.is_living(session) {
                self.after = Duration::ZERO;
            } else {
                self.last = Ownership::Unowned;
                self.open_since = None;
            }
        }
        let asks = match self.last {
            Ownership::Unowned | Ownership::Foreign(_) | Ownership::Refused(_) => true,
            Ownership::Other(_) => self.doubted,
            Ownership::Claiming | Ownership::Ours => false,
        };
        if !asks || now < self.after {
            return false;
        }
        let open_since = *self.open_since.get_or_insert(now);
        let leaves = deaf && matches!(self.last, Ownership::Other(_));
        let patience = if leaves { patience * 2 } else { patience };
        let falls_here = || falls_to(key, holder_node, lock.working()) == lock.own();
        self.is_offered(now) || (!leaves && falls_here()) || now >= open_since + patience
    }

    /// A claim is sent.
    pub(super) fn begin(&mut self) {
        // A doubt that arises while the answer is on its way is about what comes after the answer.
        self.doubted = false;
        if !matches!(self.last, Ownership::Other(_)) {
            self.last = Ownership::Claiming;
        }
    }

    /// The claim takes longer: it is being settled whether the group exists.
    pub(super) fn settle(&mut self) {
        self.last = Ownership::Claiming;
    }

    /// The answer to a claim is of no use: it is for a session that has ended.
    pub(super) fn abandon(&mut self) {
        (self.last, self.given) = (Ownership::Unowned, false);
    }

    /// The owner may have given the group up although its session is alive: this replica asks again.
    pub(super) fn doubt(&mut self) {
        if !std::mem::replace(&mut self.doubted, true) {
            self.open_since = None;
        }
    }

    /// This replica gives the group to the one that it falls to.
    pub(super) fn give(&mut self) {
        (self.last, self.was_ours) = (Ownership::Unowned, false);
        self.given = true;
    }

    /// This replica gives the group to another one, although the group may fall to this one. Until then it does not
    /// claim the group back.
    pub(super) fn hand_over(&mut self, until: Duration) {
        (self.last, self.was_ours) = (Ownership::Unowned, false);
        self.after = until;
    }

    /// This replica offers to take the group over.
    pub(super) fn offer(&mut self, until: Duration) {
        self.offered_until = until;
    }

    /// Whether this replica offers to take the group over.
    pub(super) fn is_offered(&self, now: Duration) -> bool {
        now < self.offered_until
    }

    /// Whether this replica gave the group to the one that it falls to, and does not know yet whether that one took it.
    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// The same, and forgets it.
    pub(super) fn take_given(&mut self) -> bool {
        std::mem::take(&mut self.given)
    }

    /// Takes the answer to a claim in. Returns whether this replica owns the group now, or what to report.
    pub(super) fn answered(
        &mut self,
        answer: Result<Answer, Trouble>,
        lock: &LockView,
        now: Duration,
    ) -> Result<bool, Trouble> {
        self.last = Ownership::Unowned;
        // A read that hangs occupies one of few places.
        let hangs = matches!(answer, Err(Trouble::Unreachable(_) | Trouble::Refused(_)));
        self.after = if hangs { now + RECLAIM } else { Duration::ZERO };
        let claimed = match answer? {
            Answer::Lock(claimed) | Answer::Unsettled(claimed) => *claimed,
            Answer::Buried => {
                self.after = now + RECLAIM;
                return Ok(false);
            }
            Answer::Refused(refusal) => {
                (self.last, self.after) = (Ownership::Refused(refusal), now + RECLAIM);
                return Ok(false);
            }
        };
        self.was_ours = matches!(claimed, Claimed::Ours(_));
        match claimed {
            Claimed::Ours(_) => {
                self.open_since = None;
                // If it is given to another replica later, that one is to claim it.
                self.offered_until = Duration::ZERO;
                return Ok(true);
            }
            // A session that shares no groups with this one is not asked about at each heartbeat. One that does may be
            // about to end, and then the group is claimed at once.
            Claimed::By { session } => {
                self.last = Ownership::Other(session);
                if self.doubted {
                    self.open_since = None;
                }
                self.after = if lock.is_living(session) { Duration::ZERO } else { now + RECLAIM };
            }
            Claimed::Foreign { group } => {
                self.last = Ownership::Foreign(group.into());
                self.after = now + RECLAIM;
            }
            Claimed::ProtocolNewer { protocol } => {
                self.after = now + RECLAIM;
                return Err(Trouble::Lock(format!(
                    "a newer operator (lock protocol {protocol}) has taken this group; upgrade this replica"
                )));
            }
            Claimed::Busy => {}
            // The quorum read did not find the group. The watch will show that too.
            Claimed::Missing | Claimed::Tombstone { .. } => self.after = now + RECLAIM,
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leadergroup_lock::Peer;

    const PATIENCE: Duration = Duration::from_secs(2);

    /// The lock as seen by the first of these sessions. All of them are alive.
    fn view(living: &[SessionId]) -> LockView {
        let mut view = LockView::default();
        let peers = living.iter().map(|session| Peer { session: *session, place: None });
        view.beat(living[0], peers.collect(), Vec::new(), Duration::ZERO);
        view
    }

    #[test]
    fn a_group_is_claimed_by_the_replica_that_it_falls_to_and_after_a_while_by_any() {
        let key = Key::new("web").expect("a key");
        let living = [SessionId::new(), SessionId::new()];
        let chosen = falls_to(&key, None, view(&living).living().iter()).expect("one of them");
        let other = living.into_iter().find(|session| *session != chosen).expect("the other one");
        let (of_chosen, of_other) = (view(&[chosen, other]), view(&[other, chosen]));
        let now = Duration::from_secs(100);
        assert!(Claims::default().due(&key, None, false, &of_chosen, PATIENCE, now));
        let mut claims = Claims::default();
        let due_at = |claims: &mut Claims, millis| {
            claims.due(&key, None, false, &of_other, PATIENCE, Duration::from_millis(millis))
        };
        // Heartbeats follow each other closely while groups are given up.
        let beats = [100_000, 100_001, 100_002, 100_003, 101_999, 102_000];
        assert_eq!(beats.map(|at| due_at(&mut claims, at)), [false, false, false, false, false, true]);
        claims.begin();
        assert!(!due_at(&mut claims, 102_000), "a claim is on its way");
        let by = Claimed::By { session: chosen };
        assert_eq!(claims.answered(Ok(Answer::Lock(Box::new(by))), &of_other, now), Ok(false));
        assert!(!due_at(&mut claims, 102_000), "it has an owner");
        // The owner may have given it up: it is asked for again, with the same patience.
        claims.doubt();
        claims.doubt();
        let beats = [103_000, 104_999, 105_000];
        assert_eq!(beats.map(|at| due_at(&mut claims, at)), [false, false, true]);
        claims.begin();
        assert_eq!(*claims.owner(), Ownership::Other(chosen), "until the answer says otherwise");
        // This replica has offered to take it.
        claims.offer(Duration::from_secs(106));
        assert!(!due_at(&mut claims, 105_000), "the owner has not given it up");
        claims.doubt();
        assert!(due_at(&mut claims, 105_000));
        assert!(!due_at(&mut claims, 106_000), "the offer is over");
        // It is handed over, and does not come back at once.
        let mut given = Claims::default();
        given.hand_over(now + RECLAIM);
        let falls_to_it = |given: &mut Claims, at| given.due(&key, None, false, &of_chosen, PATIENCE, at);
        assert!(!falls_to_it(&mut given, now) && falls_to_it(&mut given, now + RECLAIM));
        // Its session is gone.
        assert!(claims.due(&key, None, false, &view(&[other]), PATIENCE, Duration::from_secs(106)));
    }

    #[test]
    fn a_deaf_replica_leaves_a_group_to_its_living_owner_and_a_suspect_is_not_counted_on() {
        let sessions = [SessionId::new(), SessionId::new(), SessionId::new()];
        let key = Key::new("web").expect("a key");
        let chosen = falls_to(&key, None, view(&sessions).living().iter()).expect("one of them");
        let others: Vec<_> = sessions.into_iter().filter(|session| *session != chosen).collect();
        let of_chosen = view(&[chosen, others[0], others[1]]);
        let now = Duration::from_secs(100);
        let mut given_up = Claims::default();
        let by = Claimed::By { session: others[0] };
        assert_eq!(given_up.answered(Ok(Answer::Lock(Box::new(by))), &of_chosen, now), Ok(false));
        given_up.doubt();
        assert!(!given_up.due(&key, None, true, &of_chosen, PATIENCE, now));
        // The one that gave it up takes it back first.
        let (mut giver, of_giver) = (Claims::default(), view(&[others[0], chosen, others[1]]));
        giver.give();
        assert!(!giver.due(&key, None, false, &of_giver, PATIENCE, now));
        assert!(giver.due(&key, None, false, &of_giver, PATIENCE, now + PATIENCE));
        assert!(giver.take_given() && !giver.take_given());
        assert!(!given_up.due(&key, None, true, &of_chosen, PATIENCE, now + PATIENCE));
        assert!(given_up.due(&key, None, true, &of_chosen, PATIENCE, now + PATIENCE * 2), "nobody took it");
        assert!(given_up.due(&key, None, false, &of_chosen, PATIENCE, now));
        // The holder and the owner were lost together.
        let without_owner = view(&[chosen, others[1]]);
        assert!(given_up.due(&key, None, true, &without_owner, PATIENCE, now));
        // The one that it would fall to seems to have stopped.
        let next = falls_to(&key, None, of_chosen.living().iter().filter(|peer| peer.session != chosen));
        let next = next.expect("one of two");
        let mut suspecting = view(&[next, chosen, sessions[0], sessions[1], sessions[2]]);
        let living = suspecting.living().to_vec();
        suspecting.beat(next, living, vec![chosen], Duration::ZERO);
        assert!(Claims::default().due(&key, None, false, &suspecting, PATIENCE, now));
    }

    #[test]
    fn a_group_that_is_given_up_while_its_owner_is_asked_for_is_asked_for_again() {
        let key = Key::new("web").expect("a key");
        let (own, owner) = (SessionId::new(), SessionId::new());
        let lock = view(&[own, owner]);
        let now = Duration::from_secs(100);
        for given_up in [false, true] {
            let mut claims = Claims::default();
            claims.begin();
            if given_up {
                claims.doubt();
            }
            let by = Ok(Answer::Lock(Box::new(Claimed::By { session: owner })));
            assert_eq!(claims.answered(by, &lock, now), Ok(false));
            // At once or after the patience, depending on whom it falls to.
            assert!(!claims.due(&key, None, false, &lock, PATIENCE, now) || given_up);
            assert_eq!(claims.due(&key, None, false, &lock, PATIENCE, now + PATIENCE), given_up);
        }
    }

    #[test]
    fn a_group_of_a_replica_that_ends_right_after_the_answer_is_claimed_at_once() {
        let key = Key::new("web").expect("a key");
        let (own, peer) = (SessionId::new(), SessionId::new());
        let alone = view(&[own]);
        let now = Duration::from_secs(100);
        for (lock, again_at) in [(&view(&[own, peer]), now), (&alone, now + RECLAIM)] {
            let mut claims = Claims::default();
            claims.begin();
            let by = Ok(Answer::Lock(Box::new(Claimed::By { session: peer })));
            assert_eq!(claims.answered(by, lock, now), Ok(false));
            let mut due = |at| claims.due(&key, None, false, &alone, PATIENCE, at);
            assert!(again_at == now || !due(now), "it is a replica that shares no groups with this one");
            assert!(due(again_at));
        }
    }
}
