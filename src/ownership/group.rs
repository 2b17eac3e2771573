//! The state machine of one group.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use leadergroup_lock::{Key, SessionId, controller::Claimed};

use super::{
    assignment::{deputy, owner},
    event::{Answer, Effect, Event, Failure, Inside, Outside, Replica, Why},
    sessions::Sessions,
};

/// How soon a refused claim is made again, and how soon a group that was handed over is claimed back if it is still
/// free.
const RECLAIM: Duration = Duration::from_secs(5);
/// The pause before a group is given to the replica that it falls to, after it came back because that one did not claim
/// it, or moved because a replica did not hear its holder. Also the least time until a replica gives a group away again
/// because it does not hear candidates, if the holder is the same: the others may not hear them either.
const MOVED_PAUSE: Duration = Duration::from_mins(5);
/// The least time between two hand-overs of a group. Without it, a group would move back and forth if each of two
/// replicas hears the holder only some of the time. An owner that cannot judge the holder waits only for [`RECLAIM`]:
/// the holder may have ended, and only another replica can replace it.
const HAND_OVER_PAUSE: Duration = Duration::from_mins(1);

/// The owner of a group, as far as this replica knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This replica.
    This,
    /// The replica with this session.
    Other(SessionId),
    /// None, or it is not known.
    Unknown,
    /// None: the row is this other group's.
    Foreign(Arc<str>),
    /// None: the group may not take its key, for this reason.
    Refused(Arc<str>),
}

/// Which pods of a group this replica probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// All: this replica owns the group, or may soon own it.
    All,
    /// The holder only: this replica is the deputy. If the owner is lost together with the holder's node, the time of
    /// silence does not begin again.
    Holder,
    /// None: another replica does.
    None,
}

/// Since when a group can be claimed, and from when on it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vacancy {
    /// When this replica first could have claimed it. For half of the session's ttl it leaves the group to the replica
    /// that it falls to. This is a time and not a number of heartbeats, because each group that is given up causes an
    /// extra one.
    open_since: Option<Duration>,
    /// It is not claimed before this time.
    not_before: Duration,
    /// The session of this replica that owned it when that session seemed to have expired. If it turns out to be alive,
    /// the row is still its own: all others wait for this replica, so that it does not wait for them.
    kept_by: Option<SessionId>,
}

/// What this replica knows of a group's owner. The module's documentation has the table of all phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No owner is known.
    Unowned {
        /// Since when it can be claimed.
        vacancy: Vacancy,
        /// This replica owned it last, as far as it knows.
        ours_before: bool,
    },
    /// A claim is on its way.
    Claiming(Claim),
    /// This replica is the owner.
    Ours {
        /// For this session.
        session: SessionId,
        /// Since when.
        since: Duration,
    },
    /// This replica gave it to the one that it falls to, and does not know yet whether that one took it.
    Given(Vacancy),
    /// Another replica is the owner.
    Elsewhere {
        /// Its session.
        session: SessionId,
        /// If that is not one of the living replicas, the group is not claimed before this time.
        not_before: Duration,
    },
    /// That replica may have given it up.
    Yielded {
        /// Its session.
        session: SessionId,
        /// Since when it can be claimed.
        vacancy: Vacancy,
    },
    /// The row is another group's.
    Foreign {
        /// That group.
        group: Arc<str>,
        /// Since when it could be claimed.
        vacancy: Vacancy,
    },
    /// The group may not take its key.
    Refused {
        /// Why.
        reason: Arc<str>,
        /// Since when it could be claimed.
        vacancy: Vacancy,
    },
}

/// A claim that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What was known then.
    from: Origin,
    /// Since when the group could be claimed.
    vacancy: Vacancy,
    /// An owner may have given the group up after the claim was sent.
    again: bool,
}

/// What was known of the owner when a claim was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing.
    Unowned {
        /// This replica owned the group last, as far as it knows.
        ours_before: bool,
    },
    /// This replica had given the group away.
    Given,
    /// This replica lives, and may have given the group up.
    Yielded(SessionId),
}

/// The ownership of one group, advanced by [`Group::step`].
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Group {
    phase: Phase,
    /// Until when this replica, which hears the holder, claims the group as soon as it is free.
    offered_until: Duration,
    /// When this replica last gave the group away because of its holder, or took it because it hears the holder.
    moved_at: Option<Duration>,
    /// When it last did so because it did not hear candidates.
    missed_at: Option<Duration>,
    /// When this replica last took the group back because the replica that it falls to did not claim it.
    returned_at: Option<Duration>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            phase: Phase::Unowned { vacancy: Vacancy::default(), ours_before: false },
            offered_until: Duration::ZERO,
            moved_at: None,
            missed_at: None,
            returned_at: None,
        }
    }
}

impl Group {
    /// A group that this replica owns.
    #[cfg(test)]
    pub(crate) fn ours() -> Self {
        let phase = Phase::Ours { session: SessionId::new(), since: Duration::ZERO };
        Self { phase, ..Self::default() }
    }

    /// The phase.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether this replica owns the group.
    pub fn is_ours(&self) -> bool {
        matches!(self.phase, Phase::Ours { .. })
    }

    /// Since when this replica owns the group, if it does.
    pub fn ours_since(&self) -> Option<Duration> {
        if let Phase::Ours { since, .. } = self.phase { Some(since) } else { None }
    }

    /// The owner.
    pub fn owner(&self) -> Owner {
        match &self.phase {
            Phase::Ours { .. } => Owner::This,
            Phase::Elsewhere { session, .. }
            | Phase::Yielded { session, .. }
            | Phase::Claiming(Claim { from: Origin::Yielded(session), .. }) => Owner::Other(*session),
            Phase::Unowned { .. } | Phase::Claiming(_) | Phase::Given(_) => Owner::Unknown,
            Phase::Foreign { group, .. } => Owner::Foreign(group.clone()),
            Phase::Refused { reason, .. } => Owner::Refused(reason.clone()),
        }
    }

    /// Which pods of the group this replica probes, if its holder is on this node.
    pub fn probing(&self, key: &Key, holder_node: Option<&str>, sessions: &Sessions) -> Probing {
        let own = sessions.own();
        match self.owner() {
            Owner::This | Owner::Unknown => Probing::All,
            Owner::Foreign(_) | Owner::Refused(_) => Probing::None,
            Owner::Other(_) if own.is_none() => Probing::None,
            Owner::Other(session) if deputy(key, holder_node, session, sessions) != own => Probing::None,
            // If the group falls to this replica, there must be fresh evidence on every pod by then.
            Owner::Other(session) if sessions.is_suspect(session) => Probing::All,
            Owner::Other(_) => Probing::Holder,
        }
    }

    /// Whether this replica owned the group last, as far as it knows, and does not now.
    pub fn was_ours(&self) -> bool {
        matches!(
            self.phase,
            Phase::Unowned { ours_before: true, .. }
                | Phase::Claiming(Claim { from: Origin::Unowned { ours_before: true }, .. })
        )
    }

    /// Whether this replica has given the group to the one that it falls to, and does not know yet whether that one
    /// took it.
    pub fn is_given(&self) -> bool {
        matches!(self.phase, Phase::Given(_) | Phase::Claiming(Claim { from: Origin::Given, .. }))
    }

    /// Takes one event in at the monotonic time `now`.
    pub fn step(&mut self, event: Event<'_>, replica: Replica<'_>, now: Duration) -> Option<Effect> {
        match (event, &self.phase) {
            (Event::Turn(seen), _) => self.turn(seen, replica, now),
            (Event::Beat(seen), Phase::Ours { since, .. }) if now >= *since + replica.ttl => {
                self.beat(seen, replica, now)
            }
            (Event::Answered(session, answer), Phase::Claiming(claim)) => {
                let (phase, effect) = self.answered(*claim, session, answer, replica, now);
                self.phase = phase;
                effect
            }
            (Event::GivenUp, _) => {
                self.given_up();
                None
            }
            (Event::SessionEnded, Phase::Ours { session, .. }) => {
                self.leave(Some(*session));
                Some(Effect::Disown)
            }
            (Event::Lost, Phase::Ours { .. }) => {
                self.leave(None);
                None
            }
            (Event::PassOn, Phase::Ours { .. }) => {
                self.leave(None);
                Some(Effect::Give(Why::Undecodable))
            }
            (Event::NotGiven, _) => {
                (self.moved_at, self.missed_at) = (None, None);
                if let Phase::Unowned { vacancy, .. } = &mut self.phase {
                    vacancy.not_before = Duration::ZERO;
                }
                None
            }
            (Event::Unheard { pod, blind }, _) => {
                let others = replica.sessions.living().iter();
                let alone = others.map(|other| Some(other.session)).all(|one| one == replica.sessions.own());
                // The deputy asks as well: if the group comes to it, it must know by then that the owner hears the pod.
                (!alone).then_some(Effect::Ask { pod, blind })
            }
            (Event::Heard { pod, silence_timeout }, phase) if !replica.stopping => {
                if !matches!(phase, Phase::Ours { .. }) {
                    self.offered_until = now + silence_timeout * 2;
                }
                Some(Effect::Vouch(pod))
            }
            (Event::HeardElsewhere(pod), Phase::Ours { .. }) => Some(Effect::Rely(pod)),
            _ => None,
        }
    }

    /// Whether to claim the group now.
    ///
    /// A replica that does not hear the holder leaves a group to its former owner if that one is alive and gave the
    /// group up: it waits twice as long, so that the former owner takes the group back.
    fn turn(&mut self, seen: Outside<'_>, replica: Replica<'_>, now: Duration) -> Option<Effect> {
        let (own, sessions) = (replica.may_act()?, replica.sessions);
        if let Phase::Elsewhere { session, not_before }
        | Phase::Yielded { session, vacancy: Vacancy { not_before, .. } } = &mut self.phase
        {
            if sessions.is_living(*session) {
                *not_before = Duration::ZERO;
            } else {
                let vacancy = Vacancy { not_before: *not_before, ..Vacancy::default() };
                self.phase = Phase::Unowned { vacancy, ours_before: false };
            }
        }
        let (from, vacancy) = match &mut self.phase {
            Phase::Unowned { vacancy, ours_before } => {
                (Origin::Unowned { ours_before: *ours_before }, vacancy)
            }
            Phase::Foreign { vacancy, .. } | Phase::Refused { vacancy, .. } => {
                (Origin::Unowned { ours_before: false }, vacancy)
            }
            Phase::Given(vacancy) => (Origin::Given, vacancy),
            Phase::Yielded { session, vacancy } => (Origin::Yielded(*session), vacancy),
            Phase::Claiming(_) | Phase::Ours { .. } | Phase::Elsewhere { .. } => return None,
        };
        if now < vacancy.not_before {
            return None;
        }
        let open_since = *vacancy.open_since.get_or_insert(now);
        let leaves = seen.deaf && matches!(from, Origin::Yielded(_));
        let patience = if leaves { replica.ttl } else { replica.ttl / 2 };
        let falls_here = || owner(seen.key, seen.holder_node, sessions.working()) == Some(own);
        let is_at_hand = now < self.offered_until || vacancy.kept_by == Some(own);
        if !is_at_hand && (leaves || !falls_here()) && now < open_since + patience {
            return None;
        }
        self.phase = Phase::Claiming(Claim { from, vacancy: *vacancy, again: false });
        Some(Effect::Claim)
    }

    fn given_up(&mut self) {
        match &mut self.phase {
            Phase::Elsewhere { session, not_before } => {
                let vacancy = Vacancy { not_before: *not_before, ..Vacancy::default() };
                self.phase = Phase::Yielded { session: *session, vacancy };
            }
            Phase::Claiming(claim) => claim.again = true,
            _ => {}
        }
    }

    /// This replica no longer owns the group, as far as it knows. See [`Vacancy::kept_by`].
    fn leave(&mut self, kept_by: Option<SessionId>) {
        let vacancy = Vacancy { kept_by, ..Vacancy::default() };
        self.phase = Phase::Unowned { vacancy, ours_before: true };
    }

    /// Whether to give the group away now.
    fn beat(&mut self, seen: Inside<'_>, replica: Replica<'_>, now: Duration) -> Option<Effect> {
        let (own, sessions) = (replica.may_act()?, replica.sessions);
        let over = |at: Option<Duration>, pause| at.is_none_or(|at| now >= at + pause);
        // A replica that can open no connection neither hears the holder nor reaches the API server.
        let reported = seen.reported || seen.unreportable;
        let has_rested = over(self.moved_at, if seen.blind { RECLAIM } else { HAND_OVER_PAUSE });
        let hands_over = seen.heard_elsewhere && reported && has_rested;
        if hands_over && seen.room.has(Why::HeardElsewhere) {
            return Some(self.move_away(Why::HeardElsewhere, now + RECLAIM, now));
        }
        // Only another replica can find a holder. If no other one takes the group, this one claims it again.
        let has_others = || sessions.working().nth(1).is_some();
        // Another one has found a holder since this one gave the group away: it hears pods that this one does not.
        let helped = seen.has_holder && self.missed_at.is_some_and(|at| seen.held_since > at);
        let may_give = helped || over(self.missed_at, MOVED_PAUSE);
        let gives_up = !seen.works && seen.misses_candidates && may_give && has_others();
        if gives_up && seen.room.has(Why::MissesCandidates) {
            self.missed_at = Some(now);
            // One that does not hear the holder either waits for a whole ttl.
            return Some(self.move_away(Why::MissesCandidates, now + replica.ttl * 2, now));
        }
        // By one ttl after a change of holder the other replicas have seen it, and what failed. One that was lost
        // together with the former holder is no longer taken for a living one.
        let may_move = seen.reported
            && ((seen.works && !seen.unheard) || !seen.has_holder)
            && now >= seen.held_since + replica.ttl
            && over(self.moved_at.max(self.returned_at), MOVED_PAUSE);
        let falls_to_other =
            || owner(seen.key, seen.holder_node, sessions.working()).is_some_and(|to| to != own);
        if seen.room.has(Why::FallsElsewhere) && may_move && falls_to_other() {
            self.phase = Phase::Given(Vacancy::default());
            return Some(Effect::Give(Why::FallsElsewhere));
        }
        None
    }

    /// Gives the group to another replica, although it may fall to this one. This one does not claim it back before
    /// this time.
    fn move_away(&mut self, why: Why, not_before: Duration, now: Duration) -> Effect {
        let vacancy = Vacancy { not_before, ..Vacancy::default() };
        self.phase = Phase::Unowned { vacancy, ours_before: false };
        self.moved_at = Some(now);
        Effect::Give(why)
    }

    /// The phase after the answer to a claim, and what is to be done.
    fn answered(
        &mut self,
        claim: Claim,
        session: SessionId,
        answer: Result<Answer, Failure>,
        replica: Replica<'_>,
        now: Duration,
    ) -> (Phase, Option<Effect>) {
        let vacancy = claim.vacancy;
        let again = Vacancy { not_before: now + RECLAIM, ..vacancy };
        let free = |vacancy| Phase::Unowned { vacancy, ours_before: false };
        let is_current = replica.sessions.own() == Some(session);
        // The answer is of no use if the session has ended. A replica that stops begins nothing.
        if !is_current || (replica.stopping && matches!(answer, Ok(Answer::Provisional(_)))) {
            let ours_before = matches!(claim.from, Origin::Unowned { ours_before: true });
            return (Phase::Unowned { vacancy, ours_before }, None);
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return (claim.back(if failure.waits { again } else { vacancy }), None),
        };
        let claimed = match answer {
            Answer::Provisional(claimed) => return (claim.resolving(), Some(Effect::Resolve(claimed))),
            Answer::Buried => return (free(again), Some(Effect::Bury)),
            Answer::Refused(reason) => return (Phase::Refused { reason, vacancy: again }, None),
            Answer::Lock(claimed) => *claimed,
        };
        let given = claim.from == Origin::Given;
        match claimed {
            Claimed::Ours(row) => (self.taken(session, given, now), Some(Effect::Adopt(Box::new(row)))),
            Claimed::By { session } => {
                (owned_by(session, claim.again, replica, now), given.then_some(Effect::Taken))
            }
            Claimed::Foreign { group } => (Phase::Foreign { group: group.into(), vacancy: again }, None),
            Claimed::ProtocolNewer { protocol } => (free(again), Some(Effect::ReportNewer(protocol))),
            Claimed::Busy => (claim.back(vacancy), None),
            // The quorum read did not find the group. The watch will show that too.
            Claimed::Missing | Claimed::Tombstone => (free(again), None),
        }
    }

    /// The lock says that this replica is the owner.
    fn taken(&mut self, session: SessionId, given: bool, now: Duration) -> Phase {
        if now < self.offered_until {
            self.moved_at = Some(now);
        }
        // If it is given to another replica later, that one is to claim it.
        self.offered_until = Duration::ZERO;
        if given {
            self.returned_at = Some(now);
        }
        Phase::Ours { session, since: now }
    }
}

impl Claim {
    /// The answer said nothing about the owner.
    fn back(self, vacancy: Vacancy) -> Phase {
        match self.from {
            Origin::Unowned { ours_before } => Phase::Unowned { vacancy, ours_before },
            Origin::Given => Phase::Given(vacancy),
            Origin::Yielded(_) => Phase::Unowned { vacancy, ours_before: false },
        }
    }

    /// The answer is provisional. The group has no row of another replica.
    fn resolving(self) -> Phase {
        let from = match self.from {
            Origin::Yielded(_) => Origin::Unowned { ours_before: false },
            from => from,
        };
        Phase::Claiming(Self { from, ..self })
    }
}

/// The lock says that another replica is the owner. A session that shares no groups with this one is not asked about at
/// each heartbeat. One that does may be about to end, and then the group is claimed at once.
fn owned_by(session: SessionId, gave_up: bool, replica: Replica<'_>, now: Duration) -> Phase {
    let not_before = if replica.sessions.is_living(session) { Duration::ZERO } else { now + RECLAIM };
    if gave_up {
        return Phase::Yielded { session, vacancy: Vacancy { not_before, ..Vacancy::default() } };
    }
    Phase::Elsewhere { session, not_before }
}
