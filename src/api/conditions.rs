//! The types of conditions, and the reasons of conditions and of changes of holder. They are defined only here.

use std::fmt;

/// The conditions of a `LeaderGroup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// The spec can be carried out.
    Accepted,
    /// A pod is labelled active, and the term is confirmed.
    Active,
    /// At least one more pod could take over at once.
    Redundant,
    /// The pods carry the labels of the declared term.
    Routed,
    /// The operator probes the pods itself.
    Probed,
    /// The operator can reach the lock's database.
    LockStoreReachable,
    /// The group is accepted, active and routed.
    Ready,
    /// The operator cannot go on until a user changes something.
    Stalled,
}

/// The reason of a condition or of a change of holder. Each is one CamelCase word.
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
    /// A container of the pod ended and was restarted.
    ContainerRestarted,
    /// The kubelet reports that the pod is not ready.
    PodNotReady,
    /// The pod refused its probes or the connections to it.
    ProbeRefused,
    /// The pod did not answer for the lock's ttl.
    Silent,
    /// A user requested the change.
    Switchover,
    /// The pod's node is cordoned, or about to be removed by an autoscaler.
    NodeCordoned,
    /// A rollout is about to delete the pod.
    Rollout,
    /// A pod of a higher priority could be active again.
    Failback,
    /// A change that was interrupted by a fault was completed, and why it was begun is not known; or a change was given
    /// up, and the active pod keeps the role.
    Resumed,
    /// The database lost commits; the active pod keeps its role under a larger token.
    LostCommits,
    /// The role label or the stamp was removed from the active pod; the operator restored it under a larger token.
    LabelLost,
    /// The selector matches no pod.
    NoPods,
    /// The selector matches pods, but none of them can be active.
    NoEligiblePod,
    /// The pods have no probe that can be run from outside.
    NoProbe,
    /// The pods are probed by TCP connections, which do not detect a hang.
    TcpOnly,
    /// The probe of a pod cannot be carried out.
    ProbeUnusable,
    /// The operator itself is hindered from probing the pods.
    CannotProbe,
    /// A change of holder is in progress.
    Changing,
    /// Only one pod can be active.
    NoStandby,
    /// A pod is also selected by another, older group.
    SelectedByOtherGroup,
    /// The lock's row belongs to another group.
    KeyInUse,
    /// The group may not take the lock key that its spec names.
    KeyNotAllowed,
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
    /// The operator is to manage endpoints, and was not set up for it.
    EndpointsNotManaged,
    /// No Service has the label that names the group.
    NoService,
    /// The endpoints of a Service cannot be managed as it is.
    ServiceUnusable,
    /// The pods' owner selects by the role label, so it would orphan the active pod.
    RoleLabelInOwnerSelector,
    /// The template of the pods sets the role label, so each new pod comes with a role that nobody gave it.
    RoleLabelInTemplate,
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Reason {
    /// The reasons for which holders change. The lock's row keeps them as text.
    pub const OF_CHANGES: [Self; 16] = [
        Self::FirstHolder,
        Self::PodDeleted,
        Self::PodFinished,
        Self::DisruptionTarget,
        Self::ContainerTerminated,
        Self::ContainerRestarted,
        Self::PodNotReady,
        Self::ProbeRefused,
        Self::Silent,
        Self::Resumed,
        Self::LostCommits,
        Self::LabelLost,
        Self::Switchover,
        Self::NodeCordoned,
        Self::Rollout,
        Self::Failback,
    ];

    /// Whether a change for this reason is planned: the former holder works.
    pub fn is_planned(self) -> bool {
        matches!(self, Self::Switchover | Self::NodeCordoned | Self::Rollout | Self::Failback)
    }

    /// Whether a change for this reason means that the former holder did not work, although it had not ended for good.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            Self::ContainerTerminated
                | Self::ContainerRestarted
                | Self::PodNotReady
                | Self::ProbeRefused
                | Self::Silent
        )
    }

    /// The reason of a change of holder that reads so.
    pub fn of_change(text: &str) -> Option<Self> {
        Self::OF_CHANGES.into_iter().find(|reason| reason.to_string() == text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_change_is_read_as_it_was_written() {
        for reason in Reason::OF_CHANGES {
            assert_eq!(Reason::of_change(&reason.to_string()), Some(reason));
        }
        for other in ["", "silent", "NoPods", "reassigned by hand (by me)"] {
            assert_eq!(Reason::of_change(other), None, "{other}");
        }
    }
}
