//! The types and reasons of conditions and changes of holder: their one home.

use std::fmt;

/// The conditions of a `LeaderGroup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// The spec can be carried out.
    Accepted,
    /// A pod is labelled active and confirmed.
    Active,
    /// At least one further pod could take over at once.
    Redundant,
    /// The labels on the pods are what the declaration says.
    Routed,
    /// The operator reaches the lock's database.
    LockStoreReachable,
    /// The sum: accepted, active and routed.
    Ready,
    /// Nothing will change until a user changes something.
    Stalled,
}

/// Why a condition is what it is, or why the holder changed. One CamelCase word each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing is wrong.
    AsExpected,
    /// A pod is active, and nothing is wrong.
    Active,
    /// The operator has not seen the group yet.
    Pending,
    /// The first holder of the group, or the first after there was none.
    FirstHolder,
    /// The pod was deleted, drained or evicted.
    PodDeleted,
    /// The pod finished: phase Failed or Succeeded.
    PodFinished,
    /// The pod is being evicted or pre-empted.
    DisruptionTarget,
    /// A container of the pod ended.
    ContainerTerminated,
    /// A container of the pod ended and was started anew.
    ContainerRestarted,
    /// The kubelet says that the pod is not ready.
    PodNotReady,
    /// The pod refused its probes or the connections to it.
    ProbeRefused,
    /// Nothing was heard of the pod for the lock's ttl.
    Silent,
    /// A change that a fault had interrupted was finished.
    Resumed,
    /// The database lost commits; the active pod keeps its role under a higher token.
    LostCommits,
    /// Somebody took the role label or the stamp off the active pod; it got them back under a higher token.
    LabelLost,
    /// The selector matches no pod.
    NoPods,
    /// Pods are there, but none could be active.
    NoEligiblePod,
    /// A change of holder is under way.
    Changing,
    /// Only one pod could be active.
    NoStandby,
    /// A pod is also selected by another, older group.
    SelectedByOtherGroup,
    /// The lock's row belongs to another group.
    KeyInUse,
    /// The database cannot be reached or used.
    LockStoreUnavailable,
    /// The operator cannot watch the pods.
    WatchFailed,
    /// The group is paused.
    Paused,
    /// The spec contradicts itself.
    InvalidSpec,
    /// A write to the API server was refused.
    WriteRefused,
    /// The label of the pods' owner would orphan the active pod.
    RoleLabelInOwnerSelector,
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
