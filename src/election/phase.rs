//! The positions of a group in the protocol, each with the data that has a meaning only there. The module's
//! documentation has the table of all phases.

use std::time::Duration;

use super::event::{GrantRequest, Outcome};
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

/// A call that is repeated until its result is known: it may have taken effect although its answer was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Whether an earlier one failed but may have taken effect or still may.
    pub in_doubt: bool,
    /// When the next one is made; none while an outcome is awaited.
    pub retry_at: Option<Duration>,
}

impl Attempt {
    /// Whether it is unknown after this outcome whether the call took effect or still may.
    pub(super) fn is_open_after(self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Unknown => true,
            // This one did not, but an earlier one may have.
            Outcome::Failed => self.in_doubt,
            _ => false,
        }
    }
}

/// A deletion in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// The present step.
    pub step: Removal,
    /// When the step that failed is tried again; none while an outcome is awaited.
    pub retry_at: Option<Duration>,
    /// When this step stops waiting for the database, or for rights to the pods.
    pub give_up_at: Option<Duration>,
    /// When labels that could not be cleared are left as they are, whatever the reason.
    pub labels_by: Option<Duration>,
}

impl Retirement {
    /// The beginning of this step.
    pub(super) fn at(step: Removal) -> Self {
        Self { step, retry_at: None, give_up_at: None, labels_by: None }
    }
}

/// The steps of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The row becomes a tombstone.
    Tombstone,
    /// The labels are cleared.
    Labels,
    /// The finalizer is removed.
    Finalizer,
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
        /// The holder.
        holder: PodRef,
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
        /// The pod that is being read.
        holder: PodRef,
        /// The reason to replace it.
        reason: Reason,
        /// Whether there has been evidence since then that no read can refute, even if its cause is over: a container
        /// that ended may be running again by the time the pod is read.
        certain: bool,
    },
    /// The holder of a confirmed term is not labelled active. It is being read again before its label is restored.
    Relabelling {
        /// The pod that is being read.
        holder: PodRef,
    },
    /// Before step 1, if it is not known whether the API server lets the new holder be changed: a dry run of step 4.
    Trying(Change),
    /// Before step 1 of a planned change: the program of the former holder has to end.
    Stopping {
        /// The change.
        change: Change,
        /// The declaration that asks the program to end, while that is being made.
        declaring: Option<Declaration>,
        /// When the change goes on anyway.
        until: Duration,
    },
    /// Step 1.
    Granting {
        /// The change.
        change: Change,
        /// The request, which is repeated as it is.
        request: GrantRequest,
        /// What became of it so far.
        attempt: Attempt,
    },
    /// Before step 2, if the declared term was not confirmed: a promotion under it may still be in flight. Its holder
    /// gets that term's stamp as a standby; after that no such promotion can take effect.
    Fencing(Change),
    /// Step 2.
    Declaring {
        /// The change.
        change: Change,
        /// The declaration that is being made.
        next: Declaration,
        /// The resourceVersion of the new holder, read before the declaration.
        witness: Option<String>,
    },
    /// Step 3.
    Stripping {
        /// The change.
        change: Change,
        /// The resourceVersion of the new holder, read before the declaration; none if it was not.
        witness: Option<String>,
    },
    /// Between steps 3 and 4: the former program has to be over before the next one may start.
    Clearing {
        /// The change.
        change: Change,
        /// The resourceVersion of the new holder, read before the declaration; none if it was not.
        witness: Option<String>,
        /// The declaration that lets the program start, while that is being made.
        declaring: Option<Declaration>,
    },
    /// Between steps 3 and 4: pods are told their role.
    Telling {
        /// The change.
        change: Change,
        /// The resourceVersion of the new holder, read before the declaration; none if it was not.
        witness: Option<String>,
        /// The role that they are told: first the former holders are standbys, then the new one is active.
        role: Role,
    },
    /// Step 4.
    Promoting {
        /// The change.
        change: Change,
        /// Consecutive conflicts so far.
        conflicts: u32,
    },
    /// Before step 4, unless the holder was read before the declaration: the pod, the declaration and the row are
    /// being read, in this order.
    Rechecking {
        /// The change.
        change: Change,
        /// Consecutive conflicts so far.
        conflicts: u32,
    },
    /// Step 5.
    Confirming {
        /// The change.
        change: Change,
        /// When it is tried again; none while an outcome is awaited.
        retry_at: Option<Duration>,
    },
    /// The lock is being freed: its holder has ended and there is no successor.
    Vacating(Attempt),
    /// Pods that are labelled active without being the holder are being stripped.
    Repairing,
    /// The group is being deleted: first the row, then the labels, then the finalizer.
    Retiring(Retirement),
    /// The group is gone.
    Retired,
}

impl Phase {
    /// Whether the election is at work in this phase.
    pub(super) fn is_at_work(&self) -> bool {
        !matches!(self, Self::Observing | Self::Retired)
    }

    /// Whether a change of holder is in progress: decided, but not complete.
    pub(super) fn is_changing(&self) -> bool {
        matches!(
            self,
            Self::Verifying { .. }
                | Self::Relabelling { .. }
                | Self::Trying(_)
                | Self::Stopping { .. }
                | Self::Granting { .. }
                | Self::Fencing(_)
                | Self::Declaring { .. }
                | Self::Stripping { .. }
                | Self::Clearing { .. }
                | Self::Telling { .. }
                | Self::Promoting { .. }
                | Self::Rechecking { .. }
                | Self::Confirming { .. }
                | Self::Vacating(_)
        )
    }

    /// Whether a term was declared and its holder is not known to be active yet.
    pub(super) fn is_past_declaration(&self) -> bool {
        matches!(
            self,
            Self::Stripping { .. }
                | Self::Clearing { .. }
                | Self::Telling { .. }
                | Self::Promoting { .. }
                | Self::Rechecking { .. }
        )
    }

    /// The declaration that is being made.
    pub(super) fn declaring(&self) -> Option<&Declaration> {
        match self {
            Self::Declaring { next, .. } => Some(next),
            Self::Stopping { declaring, .. } | Self::Clearing { declaring, .. } => declaring.as_ref(),
            _ => None,
        }
    }

    /// Whether it can only end with an answer of the database.
    pub(super) fn needs_the_lock(&self) -> bool {
        matches!(
            self,
            Self::Observing
                | Self::BackingOff { .. }
                | Self::Granting { .. }
                | Self::Confirming { .. }
                | Self::Vacating(_)
        )
    }

    /// When it goes on at the earliest, because a call has failed; none if it need not wait for that.
    pub(super) fn wakes_at(&self) -> Option<Duration> {
        match self {
            Self::BackingOff { until } => Some(*until),
            Self::Granting { attempt, .. } | Self::Vacating(attempt) => attempt.retry_at,
            Self::Confirming { retry_at, .. } => *retry_at,
            Self::Retiring(retirement) => retirement.retry_at,
            _ => None,
        }
    }
}
