//! What goes into the core and what comes out.

use std::time::Duration;

use uuid::Uuid;

use super::group::{Row, World};
use crate::api::{Declaration, OnDelete, PodRef, Reason};

/// Ties an outcome to the effect that it answers: an answer to anything but the latest is out of date.
pub type Ticket = u64;

/// Something happened.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is passed once, and outcomes are as frequent as any")]
pub enum Event {
    /// The group, its pods or the evidence on them changed.
    World(World),
    /// This replica has become the group's owner. `seed` is random, and another one each time: grant ids are counted up
    /// from it.
    Owned {
        /// The source of grant ids.
        seed: Uuid,
    },
    /// This replica is no longer the group's owner.
    Disowned,
    /// The row may have changed behind our back (the database failed over, a slow check found a difference).
    Doubt,
    /// The group is being deleted, and the lock holds nothing of it any more: its row is a tombstone, or another's.
    Buried,
    /// An effect ended. The world is the one that the effect left behind: a group that settles must not decide on what it
    /// has just changed.
    Outcome(Ticket, Outcome, World),
    /// Time passed.
    Tick,
}

/// Something is to be done. Each is carried out by one call that ends within a bound, and answered by one [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read the lock's row, and the group by a quorum read. -> [`Outcome::Read`]
    Read,
    /// Read this pod by a quorum read. -> [`Outcome::Verified`]
    Verify(PodRef),
    /// Step 1. -> [`Outcome::Granted`]
    Grant(Grant),
    /// Free the lock; its token stays. -> [`Outcome::Vacated`]
    Vacate {
        /// The token of the term that ends.
        token: i64,
    },
    /// Step 2: compare-and-set of the declaration. -> [`Outcome::Declared`]
    Declare {
        /// The declaration that must still be there, whole.
        previous: Declaration,
        /// What it becomes.
        next: Declaration,
    },
    /// Step 3. -> [`Outcome::Stripped`]
    Strip {
        /// The declared token.
        token: i64,
        /// Whom to strip; gone pods count as stripped.
        pods: Vec<PodRef>,
    },
    /// Step 4. -> [`Outcome::Promoted`] or [`Outcome::Conflict`]
    Promote {
        /// The declared token.
        token: i64,
        /// Whom to label.
        pod: PodRef,
        /// The resourceVersion that the write is bound to.
        version: String,
    },
    /// Read the pod, then the declaration and the row. -> [`Outcome::Rechecked`]
    Recheck(PodRef),
    /// Step 5. -> [`Outcome::Confirmed`]
    Confirm {
        /// The term.
        token: i64,
    },
    /// Label and stamp these as standby, but for those that read as active. -> [`Outcome::Stamped`]
    Stamp {
        /// The declared token.
        token: i64,
        /// Whom.
        pods: Vec<PodRef>,
    },
    /// Mark the row as that of a deleted group; its token stays. -> [`Outcome::Tombstoned`]
    Tombstone,
    /// Settle the labels of a deleted group. -> [`Outcome::Cleared`] or [`Outcome::ClearRefused`]
    Clear {
        /// How.
        on_delete: OnDelete,
        /// Whose.
        pods: Vec<PodRef>,
    },
    /// Take the finalizer off. -> [`Outcome::Unfinalized`]
    Unfinalize,
    /// For the status, the log and the metrics; no outcome.
    Finished(Finished),
}

/// What step 1 asks of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The token that the row must still have.
    pub expected: i64,
    /// What the new token must exceed besides.
    pub floor: i64,
    /// The holder-to-be.
    pub holder: PodRef,
    /// Makes a repetition recognisable.
    pub id: Uuid,
    /// Why.
    pub reason: Reason,
}

/// A change of holder was seen through, or ended without a successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The term's token.
    pub token: i64,
    /// Who was active before.
    pub from: Option<PodRef>,
    /// Who is active now.
    pub to: Option<PodRef>,
    /// Why.
    pub reason: Reason,
    /// From the decision to the label.
    pub took: Duration,
}

/// How an effect ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The row, if there is one and this replica is in charge of it, and the declaration, unless the group is gone.
    Read {
        /// The lock's row.
        row: Option<Row>,
        /// The declaration.
        declared: Option<Declaration>,
    },
    /// What a quorum read says against the pod; none when it says that the pod is well.
    Verified(Option<Reason>),
    /// The row names the new holder, with this token.
    Granted {
        /// The new token.
        token: i64,
    },
    /// The lock is free.
    Vacated,
    /// The declaration is made.
    Declared,
    /// None of the pods reads as active any more.
    Stripped,
    /// The holder reads as active.
    Promoted,
    /// The pod changed in between; nothing was written.
    Conflict,
    /// The pod's resourceVersion (none: it is gone) and whether it already carries role and stamp, then what
    /// declaration and row say.
    Rechecked {
        /// The version to bind the write to.
        version: Option<String>,
        /// The declaration read after it.
        declared: Option<Declaration>,
        /// The row read after it.
        row: Option<Row>,
    },
    /// The term is confirmed.
    Confirmed,
    /// The standbys are stamped, as far as they could be.
    Stamped,
    /// The row is a tombstone.
    Tombstoned,
    /// The labels are settled.
    Cleared,
    /// The API server does not allow some labels to be settled; all others are.
    ClearRefused,
    /// The finalizer is gone.
    Unfinalized,
    /// It was refused: the ground for the decision is gone.
    Refused(Refusal),
    /// It did not take effect.
    Failed,
    /// Whether it took effect, or will yet, is not known.
    Unknown,
}

/// Why an effect was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This replica does not own the row.
    NotOwner,
    /// Row, declaration or stamp are ahead of the decision.
    Outdated,
    /// The group is gone, or is another one of the same name.
    GroupGone,
}
