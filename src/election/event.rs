//! The inputs (events) and outputs (effects) of the election core.

use std::time::Duration;

use uuid::Uuid;

use super::world::{Row, World};
use crate::api::{Declaration, DeletionPolicy, PodAt, PodRef, Reason, Role};

/// Connects an outcome with its effect. An outcome for any ticket but the latest is out of date.
pub type Ticket = u64;

/// An input of the core.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is passed once, and outcomes are as frequent as any")]
pub enum Event {
    /// The group, its pods or the evidence about them changed.
    World(World),
    /// This replica became the owner of the group.
    Owned {
        /// The source of grant ids, which count up from it: a new random number each time.
        seed: Uuid,
        /// The row as the claim returned it; none if it must be read. If the declaration in the world is of the same
        /// term, and the term is confirmed, nothing has to be read: a declaration that is out of date is refused when
        /// it is to be replaced.
        row: Option<Row>,
        /// The world at this time.
        world: World,
    },
    /// This replica is no longer the owner.
    Disowned,
    /// The row may have changed without our doing (the database failed over, or the slow comparison found a
    /// difference).
    Doubt,
    /// The group is being deleted, and has no row left: the row is a tombstone, or belongs to another group.
    Buried,
    /// An effect ended. The world is the one that the effect left behind: a group that settles must not decide on what
    /// it has just changed.
    Outcome(Ticket, Outcome, World),
    /// Time passed.
    Tick,
}

/// An action for the caller. Each is carried out by one call of bounded duration and answered by one [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "an effect is passed once, and declarations are as frequent as any"
)]
pub enum Effect {
    /// Read the lock's row, and the group by a quorum read. -> [`Outcome::Read`]
    Read,
    /// Read this pod by a quorum read. -> [`Outcome::Verified`]
    Verify(PodRef),
    /// Ask the API server whether it would let this pod be labelled active, without writing anything: a dry run of
    /// step 4. -> [`Outcome::Accepted`], [`Outcome::Refused`] or [`Outcome::HolderRefused`]
    Try {
        /// The token of the stamp.
        token: i64,
        /// The pod.
        pod: PodRef,
        /// The holder that would lose the label for a planned change, for a dry run of step 3 as well.
        from: Option<PodRef>,
    },
    /// Step 1. -> [`Outcome::Granted`]
    Grant(GrantRequest),
    /// Free the lock; its token stays. -> [`Outcome::Vacated`]
    Vacate {
        /// The token of the term that ends.
        token: i64,
    },
    /// Step 2: a compare-and-set of the declaration. -> [`Outcome::Declared`]
    Declare {
        /// The complete declaration that must still be there.
        previous: Declaration,
        /// The new declaration.
        next: Declaration,
    },
    /// Step 3. -> [`Outcome::Stripped`]
    Strip {
        /// The declared token.
        token: i64,
        /// The pods to strip. A pod that is gone counts as stripped.
        pods: Vec<PodAt>,
    },
    /// Step 4. -> [`Outcome::Promoted`], [`Outcome::Conflict`] or [`Outcome::Refused`]
    Promote {
        /// The declared token.
        token: i64,
        /// The pod to label.
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
    /// Label and stamp these pods as standby, except those that are labelled active. -> [`Outcome::Stamped`]
    Stamp {
        /// The declared token.
        token: i64,
        /// The pods.
        pods: Vec<PodAt>,
    },
    /// Tell these pods their role by their hook. Pods that are gone need not be told. -> [`Outcome::Told`]
    Tell {
        /// The role.
        role: Role,
        /// The declared token.
        token: i64,
        /// The reason of the declared term.
        reason: Reason,
        /// The pods.
        pods: Vec<PodRef>,
    },
    /// Delete these pods, each if it still has the version that is named. -> [`Outcome::Deleted`]
    Delete(Vec<PodAt>),
    /// Mark the row as a tombstone of a deleted group; its token stays. -> [`Outcome::Tombstoned`]
    Tombstone,
    /// Clear the labels of a deleted group. -> [`Outcome::Cleared`] or [`Outcome::ClearRefused`]
    Clear {
        /// Whether to remove or keep the labels.
        deletion_policy: DeletionPolicy,
        /// The pods of the group.
        pods: Vec<PodAt>,
    },
    /// Remove the finalizer. -> [`Outcome::Unfinalized`]
    Unfinalize,
    /// For the status, the log and the metrics; no outcome.
    Finished(Finished),
}

/// The request of step 1 to the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// The token that the row must still have.
    pub expected: i64,
    /// The new token must also exceed this.
    pub floor: i64,
    /// The new holder.
    pub holder: PodRef,
    /// Identifies repetitions of this request.
    pub id: Uuid,
    /// The reason of the change.
    pub reason: Reason,
}

/// A change of holder was completed, or ended without a successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The term's token.
    pub token: i64,
    /// The pod that was active before.
    pub from: Option<PodRef>,
    /// The pod that is active now.
    pub to: Option<PodRef>,
    /// The reason of the change.
    pub reason: Reason,
    /// The time to the confirmation of the term: from the last answer of a former pod that was silent, otherwise from
    /// the first evidence against it or the decision.
    pub took: Duration,
}

/// The result of an effect.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The row, if it exists and this replica owns it; the declaration, unless the group is gone.
    Read {
        /// The lock's row.
        row: Option<Row>,
        /// The declaration.
        declared: Option<Declaration>,
    },
    /// The evidence of a quorum read against the pod; none if the pod is healthy.
    Verified(Option<Reason>),
    /// The API server would let the pod be labelled active.
    Accepted,
    /// The API server refuses to label the pod active, and would refuse it again. Nothing was written.
    Refused(String),
    /// The API server refuses to take the label off the holder of a planned change, and would refuse it again. Nothing
    /// was written.
    HolderRefused(String),
    /// The row names the new holder, with this token.
    Granted {
        /// The new token.
        token: i64,
    },
    /// The lock is free.
    Vacated,
    /// The declaration is made.
    Declared,
    /// None of the pods is labelled active any more.
    Stripped,
    /// The holder is labelled active.
    Promoted,
    /// The pod has changed since it was read; nothing was written.
    Conflict,
    /// The pod, then the declaration, then the row, read in this order.
    Rechecked {
        /// The pod's resourceVersion, for the precondition of the write; none if the pod is gone.
        version: Option<String>,
        /// The declaration, read after the pod.
        declared: Option<Declaration>,
        /// The row, read after the declaration.
        row: Option<Row>,
    },
    /// The term is confirmed.
    Confirmed,
    /// The standbys are stamped, except those listed, each with the API server's error. If any is listed, writes of
    /// others may have failed.
    Stamped(Vec<(PodRef, String)>),
    /// The pods were told their role, except those listed, each with the reason.
    Told(Vec<(PodRef, String)>),
    /// The pods are being deleted, or have changed; or the API server refuses to delete them, with this error.
    Deleted(Option<String>),
    /// The row is a tombstone.
    Tombstoned,
    /// The labels are cleared.
    Cleared,
    /// The API server refuses to change some labels; all others are cleared.
    ClearRefused,
    /// The finalizer is gone.
    Unfinalized,
    /// It was refused because the basis of the decision has changed.
    Rejected(Rejection),
    /// It did not take effect.
    Failed,
    /// It is unknown whether it took effect or still will.
    Unknown,
}

/// Why an effect was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// This replica does not own the row.
    NotOwner,
    /// The row, the declaration or a stamp is newer than the decision.
    Outdated,
    /// The group is gone, or was replaced by another one of the same name.
    GroupGone,
}
