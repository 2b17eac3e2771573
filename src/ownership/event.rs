//! What goes into the machine of a group, and what comes out.

use std::{sync::Arc, time::Duration};

use leadergroup_lock::{
    Key, SessionId,
    controller::{Claimed, LockRow},
};

use super::sessions::Sessions;

/// This replica and the others, at the time of a step.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// The sessions, as the last heartbeat showed them.
    pub sessions: &'a Sessions,
    /// The ttl of the sessions.
    pub ttl: Duration,
    /// This replica is stopping: it begins nothing.
    pub stopping: bool,
}

impl Replica<'_> {
    /// The session of this replica, if it may take groups and give them away now.
    pub fn may_act(&self) -> Option<SessionId> {
        self.sessions.reachable().filter(|_| !self.stopping)
    }
}

/// Something that happened to one group.
#[derive(Debug)]
pub enum Event<'a> {
    /// The group may be claimed now, if this replica does not own it. Comes after each heartbeat, unless other claims
    /// are under way, or the pods have not been listed.
    Turn(Outside<'a>),
    /// A heartbeat of this replica succeeded, or a watch has shown its first list, and the group, which it owns, is at
    /// rest: nothing is under way, and no call has failed.
    Beat(Inside<'a>),
    /// The claim that was made for this session was answered.
    Answered(SessionId, Result<Answer, Failure>),
    /// The owner may have given the group up although its session lives.
    GivenUp,
    /// The session of this replica ended: other replicas may own what this one owned.
    SessionEnded,
    /// A call for the group showed that another replica owns it, or the group is gone.
    Lost,
    /// This replica can no longer decode the group. Another one may be able to.
    PassOn,
    /// The group could not be given away.
    NotGiven,
    /// This replica does not hear the holder.
    Unheard {
        /// The UID of the holder.
        pod: Arc<str>,
        /// The cause is this replica's own, so that others may also answer that the holder does not work.
        blind: bool,
    },
    /// Another replica asks about the holder, and this one hears it.
    Heard {
        /// The UID of the holder.
        pod: Arc<str>,
        /// How long the group's active pod may be silent.
        silence_timeout: Duration,
    },
    /// Another replica says that it hears the holder.
    HeardElsewhere(Arc<str>),
}

/// What matters of a group that this replica does not own.
#[derive(Clone, Copy, Debug)]
pub struct Outside<'a> {
    /// The key of its row.
    pub key: &'a Key,
    /// The node of its holder, if it is known.
    pub holder_node: Option<&'a str>,
    /// This replica has probed the holder, and does not hear it.
    pub deaf: bool,
}

/// What matters of a group at rest that this replica owns.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub struct Inside<'a> {
    /// The key of its row.
    pub key: &'a Key,
    /// The node of its holder, if it is known.
    pub holder_node: Option<&'a str>,
    /// Whether it has a holder.
    pub has_holder: bool,
    /// Whether the holder is active, and there is no evidence against it.
    pub works: bool,
    /// The holder has not answered this replica's last probe. Its silence would count anew with another owner.
    pub unheard: bool,
    /// Since when the holder and its term are the same.
    pub held_since: Duration,
    /// Its status says all that this replica knows. Another one cannot report what this one has seen.
    pub reported: bool,
    /// The last write of its status failed.
    pub unreportable: bool,
    /// Another replica hears the holder, and this one does not.
    pub heard_elsewhere: bool,
    /// This replica cannot judge the holder, for reasons of its own.
    pub blind: bool,
    /// This replica has no candidate, and another one may have: pods are ready that this one does not hear.
    pub misses_candidates: bool,
    /// What may be given away at this heartbeat.
    pub room: Room,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Answer {
    /// The answer of the lock.
    Lock(Box<Claimed>),
    /// The answer of the lock, which is final only once it is known whether the group still exists.
    Provisional(Box<Claimed>),
    /// The group is being deleted, and the lock has no row of it any more.
    Buried,
    /// The lock has no row of the group, which may not take its key, for this reason.
    Refused(Arc<str>),
}

/// A claim was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The API server did not answer, or refused to. Such a call takes one of few places until its time is up.
    pub waits: bool,
}

/// Something to be done for one group.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Claim it. -> [`Event::Answered`]
    Claim,
    /// Find out whether it exists, and claim it then. -> [`Event::Answered`]
    Resolve(Box<Claimed>),
    /// Begin its election: this replica owns it.
    Adopt(Box<LockRow>),
    /// End its election: this replica may no longer own it.
    Disown,
    /// End its election and give the claim up, so that another replica can claim it.
    Give(Why),
    /// The replica that it was given to has claimed it.
    Taken,
    /// It is being deleted, and has no row: begin with its labels.
    Bury,
    /// Report that an operator with this newer protocol has taken it.
    ReportNewer(u32),
    /// Ask the other replicas whether they hear this holder.
    Ask {
        /// The UID of the holder.
        pod: Arc<str>,
        /// Whether they may also answer that it does not work.
        blind: bool,
    },
    /// Tell the other replicas that this one hears this holder.
    Vouch(Arc<str>),
    /// Believe that another replica hears this holder: it is about to take the group.
    Rely(Arc<str>),
}

/// Why a group is given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It falls to another replica.
    FallsElsewhere,
    /// Another replica hears the holder, and this one does not.
    HeardElsewhere,
    /// No holder works, and this replica does not hear pods that are ready.
    MissesCandidates,
    /// This replica cannot decode it.
    Undecodable,
}

/// What may still be given away at a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room([usize; 3]);

impl Room {
    /// For so many groups that fall elsewhere, that are heard elsewhere, and whose candidates this replica misses.
    pub(super) fn for_each_reason(most: [usize; 3]) -> Self {
        Self(most)
    }

    /// Whether one more group may be given away for this reason.
    pub fn has(&self, why: Why) -> bool {
        place(why).is_none_or(|place| self.0[place] > 0)
    }

    /// A group was given away for this reason.
    pub fn take(&mut self, why: Why) {
        if let Some(place) = place(why) {
            self.0[place] = self.0[place].saturating_sub(1);
        }
    }
}

fn place(why: Why) -> Option<usize> {
    match why {
        Why::FallsElsewhere => Some(0),
        Why::HeardElsewhere => Some(1),
        Why::MissesCandidates => Some(2),
        Why::Undecodable => None,
    }
}
