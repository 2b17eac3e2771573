//! The types of conditions, and the reasons of conditions and of changes of holder. They are defined only here.

use std::fmt;

macro_rules! conditions {
    ($($(#[$doc:meta])+ $condition:ident,)+) => {
        /// The conditions of a `LeaderGroup`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ConditionType {
            $($(#[$doc])+ $condition),+
        }

        impl ConditionType {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$condition),+];

            /// Its name in the status.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$condition => stringify!($condition)),+
                }
            }
        }
    };
}

conditions! {
    /// The spec is valid.
    Accepted,
    /// The holder is labelled active, and there is no evidence against it.
    Active,
    /// At least one more pod could take over at once.
    Redundant,
    /// The pods carry the labels of the declared term, and the Services that name the group route to the active pod.
    Routed,
    /// The operator probes the pods itself.
    Probed,
    /// The operator can reach the lock's database.
    LockStoreReachable,
    /// The group is accepted, active and routed.
    Ready,
    /// The operator needs a user to change something.
    Stalled,
}

/// What a change of holder means for the former holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It works.
    Planned,
    /// It did not work, although it had not ended for good.
    Failure,
    /// It has ended for good.
    End,
    /// There was none, or it keeps the role, or it is not known why the change was begun.
    Other,
}

macro_rules! reasons {
    ($($(#[$doc:meta])+ $reason:ident: $cause:expr,)+) => {
        /// The reason of a condition or of a change of holder. Each is one CamelCase word.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])+ $reason),+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// What a change of holder for this reason means; `None` if holders do not change for it.
            pub const fn cause(self) -> Option<Cause> {
                match self {
                    $(Self::$reason => $cause),+
                }
            }
        }
    };
}

reasons! {
    /// Nothing is wrong.
    AsExpected: None,
    /// A pod is active, and nothing is wrong.
    Active: None,
    /// The operator has not seen the group yet.
    Pending: None,
    /// The first holder of the group, or the first after there was none.
    FirstHolder: Some(Cause::Other),
    /// The pod was deleted, drained or evicted.
    PodDeleted: Some(Cause::End),
    /// The pod finished: phase Failed or Succeeded.
    PodFinished: Some(Cause::End),
    /// The pod is being evicted or pre-empted.
    DisruptionTarget: Some(Cause::End),
    /// A container of the pod ended.
    ContainerTerminated: Some(Cause::Failure),
    /// A container of the pod ended and was restarted.
    ContainerRestarted: Some(Cause::Failure),
    /// The kubelet reports that the pod is not ready.
    PodNotReady: Some(Cause::Failure),
    /// The pod refused its probes or the connections to it.
    ProbeRefused: Some(Cause::Failure),
    /// The pod did not answer for `health.silenceTimeout`.
    Silent: Some(Cause::Failure),
    /// A user requested the change.
    Switchover: Some(Cause::Planned),
    /// The pod's node is cordoned, or about to be removed by an autoscaler.
    NodeCordoned: Some(Cause::Planned),
    /// A rollout is about to delete the pod.
    Rollout: Some(Cause::Planned),
    /// A pod of a higher priority is eligible again.
    Failback: Some(Cause::Planned),
    /// A change that was interrupted by a fault was completed, and why it was begun is not known; or a change was given
    /// up, and the active pod keeps the role.
    Resumed: Some(Cause::Other),
    /// The database lost commits; the active pod keeps its role under a larger token.
    LostCommits: Some(Cause::Other),
    /// The program of the active pod has ended, or the term could not start it; it is started under a larger token.
    ProgramEnded: Some(Cause::Failure),
    /// The role label or the stamp was removed from the active pod; the operator restored it under a larger token.
    LabelLost: Some(Cause::Other),
    /// The selector matches no pod.
    NoPods: None,
    /// The selector matches pods, but none of them can be active.
    NoEligiblePod: None,
    /// The pods have no probe that can be run from outside.
    NoProbe: None,
    /// The pods are probed by TCP connections, which do not detect a hang.
    TcpOnly: None,
    /// The probe of a pod cannot be carried out.
    ProbeUnusable: None,
    /// The operator itself is hindered from probing the pods.
    CannotProbe: None,
    /// A change of holder is in progress.
    Changing: None,
    /// Only one pod can be active.
    NoStandby: None,
    /// A pod is also selected by another, older group.
    SelectedByOtherGroup: None,
    /// The lock's row belongs to another group.
    KeyInUse: None,
    /// The group may not take the lock key that its spec names.
    KeyNotAllowed: None,
    /// The database cannot be reached or used.
    LockStoreUnavailable: None,
    /// The operator cannot watch the pods.
    WatchFailed: None,
    /// The group is paused.
    Paused: None,
    /// The spec contradicts itself.
    InvalidSpec: None,
    /// A write to the API server was refused.
    WriteRefused: None,
    /// The operator is to manage endpoints, and was not set up for it.
    EndpointsNotManaged: None,
    /// No Service has the label that names the group.
    NoService: None,
    /// A Service that names the group cannot route to the active pod as it is.
    ServiceUnusable: None,
    /// The endpoints that Kubernetes has written for a Service that names the group are not the active pod alone.
    ServiceMisrouted: None,
    /// The pods' owner selects by the role label, so it would orphan the active pod.
    RoleLabelInOwnerSelector: None,
    /// The operator is to delete pods that were active, and the API server refuses that.
    DeletionRefused: None,
    /// A pod could not be told its role by its hook.
    HookFailed: None,
    /// The template of the pods sets the role label, so each new pod comes with a role that nobody gave it.
    RoleLabelInTemplate: None,
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Reason {
    /// The reasons with which a group is accepted although a user should mend something.
    pub const COMPLAINTS: [Self; 3] = [Self::RoleLabelInTemplate, Self::DeletionRefused, Self::HookFailed];

    /// Whether a change for this reason is planned: the former holder works.
    pub fn is_planned(self) -> bool {
        self.cause() == Some(Cause::Planned)
    }

    /// Whether a change for this reason means that the former holder did not work, although it had not ended for good.
    pub fn is_failure(self) -> bool {
        self.cause() == Some(Cause::Failure)
    }

    /// Whether a change for this reason means that the former holder has ended for good.
    pub fn is_end(self) -> bool {
        self.cause() == Some(Cause::End)
    }

    /// The reason of a change of holder that reads so. The lock's row keeps it as text.
    pub fn of_change(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.cause().is_some() && reason.to_string() == text)
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
        for reason in Reason::ALL.iter().copied() {
            let read = Reason::of_change(&reason.to_string());
            assert_eq!(read, reason.cause().map(|_| reason));
        }
        for other in ["", "silent", "NoPods", "reassigned by hand (by me)"] {
            assert_eq!(Reason::of_change(other), None, "{other}");
        }
    }
}
