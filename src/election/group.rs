//! The state of one group: the world as last seen, the lock's row, and the current step.

use std::time::Duration;

use super::{
    event::{GrantRequest, Ticket},
    world::{Member, Row, World},
};
use crate::api::{Declaration, PodRef, Reason, Role};

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
    /// Whether this replica owns the group. The labels of a deleted group may be settled without that.
    pub(super) owned: bool,
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
    pub(super) grant: Option<GrantRequest>,
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
            owned: false,
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

    /// Whether this replica is the owner: it became so, and no outcome has shown otherwise since.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// Whether a change of holder is in progress: decided, but not complete.
    pub(crate) fn is_changing(&self) -> bool {
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
    pub(crate) fn is_stamping(&self, ticket: Ticket) -> bool {
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
        self.row.holder.as_ref()
    }

    /// The holder, if it is labelled active.
    pub fn active(&self) -> Option<&Member> {
        self.holder().and_then(|pod| self.member(&pod.uid)).filter(|member| member.role == Role::Active)
    }
}
