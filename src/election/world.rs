//! The world as the core sees it: the group's pods with the evidence on them, and the lock's row.

use std::time::Duration;

use uuid::Uuid;

use crate::api::{Declaration, OnDelete, PodRef, Reason, Role};

/// What the evidence says of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Fresh positive evidence: it could be active.
    Eligible,
    /// Nothing speaks against it, but there is no fresh positive evidence either.
    Unproven,
    /// It says no, or cannot say anything: explicit evidence.
    Failing(Reason),
    /// Nothing was heard of it for the lock's ttl, although it was being asked.
    Silent,
    /// It will not come back: deleted, finished, being evicted.
    Ended(Reason),
}

impl Standing {
    /// What speaks against it; none for a pod that is well or merely unproven.
    pub fn against(self) -> Option<Reason> {
        match self {
            Self::Ended(reason) | Self::Failing(reason) => Some(reason),
            Self::Silent => Some(Reason::Silent),
            Self::Eligible | Self::Unproven => None,
        }
    }
}

/// One pod of the group, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name and UID.
    pub pod: PodRef,
    /// The node it is bound to.
    pub node: Option<String>,
    /// Its resourceVersion, for a later write bound to it.
    pub version: String,
    /// What its label says.
    pub role: Role,
    /// The token of its stamp.
    pub stamp: Option<i64>,
    /// Whether the stamp is this group's.
    pub stamped_by_us: bool,
    /// What the evidence says.
    pub standing: Standing,
    /// Creation time, only ever compared with that of other pods: the oldest of equals is preferred.
    pub created: i64,
}

/// What of the spec matters to the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How long to wait after a holder was lost without a clean end.
    pub lock_delay: Duration,
    /// No new change of holder.
    pub paused: bool,
    /// What becomes of the labels when the group is deleted.
    pub on_delete: OnDelete,
}

/// The group as last seen through watches and evidence. May lag behind; every write re-checks what it relies on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// The pods that the selector matches.
    pub members: Vec<Member>,
    /// The spec's part.
    pub policy: Policy,
    /// The declaration in the status.
    pub declared: Declaration,
    /// Why nobody of this group may be promoted, if so.
    pub obstacle: Option<Reason>,
    /// The group has a deletionTimestamp.
    pub deleting: bool,
    /// The database has been out of reach for so long that a deletion no longer waits for it.
    pub lock_away: bool,
}

/// The lock's row of this group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The fencing token of the current term; 0 before the first.
    pub token: i64,
    /// The grant that began the term.
    pub grant: Option<Uuid>,
    /// The holder; none when the lock is free.
    pub owner: Option<PodRef>,
    /// Whether the holder's promotion was seen through.
    pub confirmed: bool,
    /// The holders of all terms since the last confirmed one, that one included.
    pub pending: Vec<PodRef>,
}
