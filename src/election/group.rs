//! The state of one group in the core: the world as last seen, the lock's row, and the current step.

use std::time::Duration;

use uuid::Uuid;

use super::event::{Grant, Ticket};
use crate::api::{Declaration, OnDelete, PodRef, Reason};

/// The verdict on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Fresh positive evidence: it could be active.
    Eligible,
    /// There is no evidence against it, but no fresh positive evidence either.
    Unproven,
    /// There is explicit evidence that it does not work.
    Failing(Reason),
    /// It did not answer for the lock's ttl, although it was probed.
    Silent,
    /// It has ended for good: deleted, finished, or being evicted.
    Ended(Reason),
}

impl Standing {
    /// The reason to replace the pod; none if it is healthy or merely unproven.
    pub fn against(self) -> Option<Reason> {
        match self {
            Self::Ended(reason) | Self::Failing(reason) => Some(reason),
            Self::Silent => Some(Reason::Silent),
            Self::Eligible | Self::Unproven => None,
        }
    }
}

/// The role that a pod's label gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Routed to.
    Active,
    /// Not routed to.
    Standby,
    /// No role label, or a value that means neither.
    None,
}

/// One pod of the group, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name and UID.
    pub pod: PodRef,
    /// The node it is bound to.
    pub node: Option<String>,
    /// Its resourceVersion, for the precondition of a later write.
    pub version: String,
    /// The role in its label.
    pub role: Role,
    /// The token of its stamp.
    pub stamp: Option<i64>,
    /// Whether the stamp is of this group.
    pub stamped_by_us: bool,
    /// The verdict on it.
    pub standing: Standing,
    /// Creation time, compared only with that of other pods: among equals the oldest is preferred.
    pub created: i64,
}

/// The parts of the spec that matter to the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How long to wait if the holder did not end cleanly.
    pub lock_delay: Duration,
    /// No new change of holder.
    pub paused: bool,
    /// What happens to the labels when the group is deleted.
    pub on_delete: OnDelete,
}

/// The group as last seen through watches and evidence. It may lag behind; every write checks its preconditions
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// The pods that the selector matches.
    pub members: Vec<Member>,
    /// From the spec.
    pub policy: Policy,
    /// The declaration in the status.
    pub declared: Declaration,
    /// The reason why no pod of this group may be promoted, if there is one.
    pub obstacle: Option<Reason>,
    /// The group has a deletionTimestamp.
    pub deleting: bool,
    /// The database has been unreachable for so long that a deletion no longer waits for it.
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
    /// Whether the holder's promotion was confirmed.
    pub confirmed: bool,
    /// The holders of all terms since the last confirmed one, that one included.
    pub pending: Vec<PodRef>,
}

/// A change of holder in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The pod to make active.
    pub holder: PodRef,
    /// The reason of the change.
    pub reason: Reason,
    /// The pod that was active before.
    pub from: Option<PodRef>,
    /// When the change was decided.
    pub began: Duration,
}

/// The position of a group in the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Another replica is the owner, or none.
    Observing,
    /// The row and the declaration are being read.
    Reading,
    /// Waiting to read them again after a failure.
    BackingOff {
        /// When to read.
        until: Duration,
    },
    /// An unfinished term was found; there is no evidence about its holder yet.
    Resuming {
        /// When to stop waiting and decide again.
        until: Duration,
    },
    /// The row lost commits, and the declared holder is not labelled active. It is being read again before another
    /// pod is chosen.
    Regaining,
    /// Row, declaration and labels agree.
    Stable,
    /// The holder's end is being confirmed by a quorum read.
    Verifying {
        /// The reason to replace the holder.
        reason: Reason,
        /// Whether there has been evidence since then that no read can refute, even if its cause is over: a container
        /// that ended may be running again by the time the pod is read.
        certain: bool,
    },
    /// The holder of a confirmed term is not labelled active. It is being read again before its label is restored.
    Relabelling,
    /// Step 1.
    Granting(Change),
    /// Before step 2, if the declared term was not confirmed: a promotion under it may still be in flight. Its holder
    /// gets that term's stamp as a standby; after that no such promotion can take effect.
    Fencing(Change),
    /// Step 2.
    Declaring(Change),
    /// Step 3.
    Stripping(Change),
    /// Step 4.
    Promoting(Change),
    /// Before step 4, unless the holder was read before the declaration: the pod, the declaration and the row are
    /// being read, in this order.
    Rechecking(Change),
    /// Step 5.
    Confirming(Change),
    /// The lock is being freed: its holder has ended and there is no successor.
    Vacating,
    /// Pods that are labelled active without being the holder are being stripped.
    Repairing,
    /// The group is being deleted: first the row, then the labels, then the finalizer.
    Retiring(Retirement),
    /// The group is gone.
    Retired,
}

/// The steps of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    /// The row becomes a tombstone.
    Tombstone,
    /// The labels are settled.
    Labels,
    /// The finalizer is removed.
    Finalizer,
}

/// The state of one group, advanced by [`Group::step`].
#[derive(Clone, Debug)]
pub struct Group {
    pub(super) world: World,
    pub(super) row: Row,
    pub(super) declared: Declaration,
    pub(super) phase: Phase,
    /// The resourceVersion of the new holder, read before the declaration.
    pub(super) witness: Option<String>,
    /// Source of grant ids: counts up from a random seed that comes with the ownership.
    pub(super) seed: u128,
    pub(super) tickets: u64,
    /// The ticket of the effect whose outcome is awaited.
    pub(super) awaiting: Option<u64>,
    /// The ticket of the background stamping in progress, if any.
    pub(super) stamping: Option<u64>,
    /// The earliest time of the next background stamping.
    pub(super) stamp_after: Duration,
    /// The earliest time at which a lost label may be restored again.
    pub(super) relabel_after: Duration,
    /// The earliest time at which the group may continue under a larger token again because its row is behind.
    pub(super) regain_after: Duration,
    /// The request of step 1, until its result is known.
    pub(super) grant: Option<Grant>,
    /// Whether an attempt of that request failed but may have taken effect or still may.
    pub(super) in_doubt: bool,
    /// Consecutive failures, for the back-off.
    pub(super) failures: u32,
    /// Consecutive conflicts while the new holder is being labelled.
    pub(super) conflicts: u32,
    /// Since when there has been evidence against the current holder, for the lock delay.
    pub(super) lost_since: Option<Duration>,
    /// When a deletion stops waiting for the database.
    pub(super) retire_by: Option<Duration>,
    /// When the failed step of a deletion, or the grant with an unknown result, is tried again.
    pub(super) retry_at: Option<Duration>,
    /// Whether the row may have changed without our doing since it was last read.
    pub(super) doubted: bool,
    /// When [`Group::step`] must be called again at the latest.
    pub(super) wake: Option<Duration>,
}

impl Group {
    /// A group that this replica does not own yet.
    pub fn new(world: World) -> Self {
        Self {
            declared: world.declared.clone(),
            world,
            row: Row::default(),
            phase: Phase::Observing,
            witness: None,
            seed: 0,
            tickets: 0,
            awaiting: None,
            stamping: None,
            stamp_after: Duration::ZERO,
            relabel_after: Duration::ZERO,
            regain_after: Duration::ZERO,
            grant: None,
            in_doubt: false,
            failures: 0,
            conflicts: 0,
            lost_since: None,
            retire_by: None,
            retry_at: None,
            doubted: false,
            wake: None,
        }
    }

    /// The position in the protocol.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The world as last given.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The lock's row as last read or changed by this replica; meaningful only while it is the owner.
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// The declaration as last read or made by this replica.
    pub fn declared(&self) -> &Declaration {
        &self.declared
    }

    /// Whether this replica is the owner.
    pub fn in_charge(&self) -> bool {
        !matches!(self.phase, Phase::Observing | Phase::Retired)
    }

    /// Whether a change of holder is in progress: decided, but not complete.
    pub fn is_changing(&self) -> bool {
        matches!(
            self.phase,
            Phase::Verifying { .. }
                | Phase::Relabelling
                | Phase::Granting(_)
                | Phase::Fencing(_)
                | Phase::Declaring(_)
                | Phase::Stripping(_)
                | Phase::Promoting(_)
                | Phase::Rechecking(_)
                | Phase::Confirming(_)
                | Phase::Vacating
        )
    }

    /// Whether this is the ticket of the background stamping.
    pub fn is_stamping(&self, ticket: Ticket) -> bool {
        self.stamping == Some(ticket)
    }

    /// Whether an outcome is awaited. A replica that shuts down waits for it.
    pub fn busy(&self) -> bool {
        self.awaiting.is_some()
    }

    /// The latest time to call [`Group::step`] with [`super::Event::Tick`].
    pub fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// The member with this UID.
    pub fn member(&self, uid: &str) -> Option<&Member> {
        self.world.members.iter().find(|member| member.pod.uid == uid)
    }

    /// The holder according to the row.
    pub fn holder(&self) -> Option<&PodRef> {
        self.row.owner.as_ref()
    }

    /// The holder, if it is labelled active.
    pub fn active(&self) -> Option<&Member> {
        self.holder().and_then(|pod| self.member(&pod.uid)).filter(|member| member.role == Role::Active)
    }
}
