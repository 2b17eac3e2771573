//! What the core knows of one group: the world as last seen, the lock's row, and the step under way.

use std::time::Duration;

use uuid::Uuid;

use super::event::{Grant, Ticket};
use crate::api::{Declaration, OnDelete, PodRef, Reason};

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

/// A change of holder under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Who is to be active.
    pub holder: PodRef,
    /// Why.
    pub reason: Reason,
    /// Who was active before.
    pub from: Option<PodRef>,
    /// When it was decided.
    pub began: Duration,
}

/// Where a group stands in the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Another replica is in charge, or none.
    Observing,
    /// The row and the declaration are being read.
    Reading,
    /// Waiting to read them anew after something went wrong.
    BackingOff {
        /// When to read.
        until: Duration,
    },
    /// An unfinished term was found; its holder has not been heard of yet.
    Resuming {
        /// When to give up on it and decide anew.
        until: Duration,
    },
    /// The row lost commits, and the declared holder does not read as active: it is being read anew before another is
    /// sought.
    Regaining,
    /// Row, declaration and labels agree.
    Stable,
    /// The holder's end is being confirmed by a quorum read.
    Verifying {
        /// What the evidence said.
        reason: Reason,
        /// Whether it has said since then what no read can refute, even if it is over already: a container that ended
        /// may run anew by the time it is read.
        certain: bool,
    },
    /// The holder of a confirmed term does not read as active: it is being read anew before it gets its label back.
    Relabelling,
    /// Step 1.
    Granting(Change),
    /// Before step 2, if the declared term was not confirmed: a promotion under it may still be on its way. Its holder
    /// gets that term's stamp as a standby, after which no such promotion takes effect.
    Fencing(Change),
    /// Step 2.
    Declaring(Change),
    /// Step 3.
    Stripping(Change),
    /// Step 4.
    Promoting(Change),
    /// Before step 4, unless the holder was read before the declaration was made: pod, declaration and row are being
    /// read, in this order.
    Rechecking(Change),
    /// Step 5.
    Confirming(Change),
    /// The lock is being freed: its holder ended and nobody can follow.
    Vacating,
    /// Pods that read as active without being the holder are being stripped.
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
    /// The finalizer goes.
    Finalizer,
}

/// One group: the state that [`Group::step`] moves.
#[derive(Clone, Debug)]
pub struct Group {
    /// Whether this replica owns the group. The labels of a deleted group may be settled without that.
    pub(super) owned: bool,
    pub(super) world: World,
    pub(super) row: Row,
    pub(super) declared: Declaration,
    pub(super) phase: Phase,
    /// The resourceVersion of the holder-to-be, read before the declaration.
    pub(super) witness: Option<String>,
    /// Source of grant ids: a random seed given with the charge, counted up.
    pub(super) seed: u128,
    pub(super) tickets: u64,
    /// The ticket of the effect whose outcome is awaited.
    pub(super) awaiting: Option<u64>,
    /// The ticket of the background stamping, if one is under way.
    pub(super) stamping: Option<u64>,
    /// When the background stamping may be tried again.
    pub(super) stamp_after: Duration,
    /// When a lost label may be put back again.
    pub(super) relabel_after: Duration,
    /// When the group may go on under a higher token again because the row is behind.
    pub(super) regain_after: Duration,
    /// What step 1 asks for, until an answer says what became of it.
    pub(super) grant: Option<Grant>,
    /// Whether that may have taken effect, or still may, although an attempt at it failed.
    pub(super) in_doubt: bool,
    /// Failures in a row, for the back-off.
    pub(super) failures: u32,
    /// Conflicts in a row, while the holder-to-be is being labelled.
    pub(super) conflicts: u32,
    /// Since when the present holder's end has been known, for the lock delay.
    pub(super) lost_since: Option<Duration>,
    /// When a deletion stops waiting for the database.
    pub(super) retire_by: Option<Duration>,
    /// When the failed step of a deletion, or the grant whose fate is unknown, is tried again.
    pub(super) retry_at: Option<Duration>,
    /// The row may have changed behind our back since it was last read.
    pub(super) doubted: bool,
    /// When [`Group::step`] wants to be called again, whatever happens.
    pub(super) wake: Option<Duration>,
}

impl Group {
    /// A group that nobody here is in charge of yet.
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

    /// Where the group stands.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The world as last given.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The lock's row as last read or changed by this replica; meaningful only while it is in charge.
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// The declaration as last read or made by this replica.
    pub fn declared(&self) -> &Declaration {
        &self.declared
    }

    /// Whether this replica owns the group: it was told so, and no answer has said otherwise since.
    pub fn is_owned(&self) -> bool {
        self.owned
    }

    /// Whether a change of holder is under way: decided on, and not yet through.
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

    /// Whether this is the ticket of the stamping in the background.
    pub fn is_stamping(&self, ticket: Ticket) -> bool {
        self.stamping == Some(ticket)
    }

    /// Whether an effect's outcome is awaited: a replica that shuts down lets it arrive.
    pub fn busy(&self) -> bool {
        self.awaiting.is_some()
    }

    /// When to call [`Group::step`] with [`super::Event::Tick`], at the latest.
    pub fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// The member with this UID.
    pub fn member(&self, uid: &str) -> Option<&Member> {
        self.world.members.iter().find(|member| member.pod.uid == uid)
    }

    /// The holder by the row.
    pub fn holder(&self) -> Option<&PodRef> {
        self.row.owner.as_ref()
    }

    /// The holder, once it carries the active label in a confirmed term.
    pub fn active(&self) -> Option<&Member> {
        self.holder().and_then(|pod| self.member(&pod.uid)).filter(|member| member.role == Role::Active)
    }
}
