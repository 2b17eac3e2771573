//! The outcome of a check: the violations found, and the promotions seen.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::moment::Moment;

/// The invariants, which must hold at every revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Invariant {
    /// I1: at most one pod of a group is labelled active, and at most one endpoint of its Service serves.
    OneActive,
    /// I2: a pod turns active only after the lock granted it the token and the group's status declared it.
    GrantedAndDeclared,
    /// I3: tokens only grow, and none is used for two owners.
    TokensGrow,
    /// I4: no pod turns active with a token after a larger one was declared.
    NoLateWrites,
    /// I5: an active pod loses the lock only after evidence against it, which fits the reason in the status.
    Evidence,
    /// I6: a failed active pod is replaced within the deadline. At rest one pod is active, and every other one is
    /// labelled and stamped as a standby.
    Liveness,
    /// I7: at rest no pod that is gone or being deleted is the declared holder.
    Release,
    /// I8: no group is written in a loop. What is written at rest is told by
    /// [`operator_writes`](super::operator_writes).
    Quiet,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneActive => "I1 one active",
            Self::GrantedAndDeclared => "I2 granted and declared first",
            Self::TokensGrow => "I3 tokens only grow",
            Self::NoLateWrites => "I4 no late writes",
            Self::Evidence => "I5 evidence",
            Self::Liveness => "I6 liveness",
            Self::Release => "I7 release",
            Self::Quiet => "I8 quiet",
        })
    }
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The revision that violates it; 0 if only the term history is involved.
    pub revision: i64,
    /// The object that changed, or the lock's key.
    pub object: String,
    /// What is wrong.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at revision {} ({}): {}", self.invariant, self.revision, self.object, self.text)
    }
}

/// A pod turned active, or its term changed while it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Promotion {
    /// The revision.
    pub revision: i64,
    /// When the collector saw it.
    pub seen: Moment,
    /// The group's UID.
    pub group: String,
    /// The lock's key.
    pub key: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The pod's node.
    pub node: Option<String>,
    /// The token it was stamped with.
    pub token: i64,
    /// From the first evidence against the former active pod in the API server to this label. None if there is none
    /// there: the operator's own probes leave no trace.
    pub evidence_ms: Option<u64>,
    #[serde(skip)]
    pub(super) seen_at: Timestamp,
}

/// The outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Checked {
    /// How many revisions were checked.
    pub revisions: usize,
    /// The largest number of active pods that any group had at any revision.
    pub most_active: usize,
    /// The promotions, in order.
    pub promotions: Vec<Promotion>,
    /// The violations; empty if all invariants hold.
    pub violations: Vec<Violation>,
}

impl Checked {
    /// The promotions of one group (by UID) after a revision.
    pub fn promotions_after(&self, group: &str, revision: i64) -> Vec<&Promotion> {
        self.promotions.iter().filter(|p| p.group == group && p.revision > revision).collect()
    }
}
