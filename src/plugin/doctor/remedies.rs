//! What to do about what the operator reports of a group. Pure.

use kube::ResourceExt as _;

use super::{finding::Remedy, installation::Operator, workloads::Workload};
use crate::{
    api::{ConditionType, LeaderGroup, Reason},
    plugin::explain::command,
};

/// What to do if the active pod does not exist any more.
pub(super) fn after_loss(operator: &Operator) -> String {
    match operator {
        Operator::Runs(place) => {
            format!("the operator replaces it within seconds; if this stays, see its log: {}", place.log())
        }
        Operator::Absent => {
            "let the operator run (see \"installation\"): it makes another pod active at once".to_owned()
        }
        Operator::Unknown => {
            "check that the operator runs: without one, no other pod becomes active".to_owned()
        }
    }
}

/// The conditions that are looked at, causes first. Ready follows from the others, and so does Stalled.
pub(super) const REPORTED: &[ConditionType] = &[
    ConditionType::Accepted,
    ConditionType::LockStoreReachable,
    ConditionType::Active,
    ConditionType::Routed,
    ConditionType::Redundant,
    ConditionType::Probed,
];

/// What to do if a condition is False.
pub(super) fn remedy_of(kind: ConditionType, group: &LeaderGroup, workloads: &[&Workload]) -> String {
    let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
    match kind {
        ConditionType::Accepted | ConditionType::Stalled => {
            format!("change the spec as the message says: `kubectl -n {namespace} edit leadergroup {name}`")
        }
        ConditionType::LockStoreReachable => {
            "mend the database; the operator then goes on by itself (docs/runbooks.md, LeaderGroupLockStoreAway)"
                .to_owned()
        }
        ConditionType::Active | ConditionType::Ready => {
            explain(group)
        }
        ConditionType::Routed => "docs/runbooks.md, LeaderGroupNotRouted".to_owned(),
        ConditionType::Redundant => more_pods(group, workloads),
        ConditionType::Probed => {
            "give the pods a readinessProbe, or set health.probe (docs/api.md, \"Which probe is used\")".to_owned()
        }
    }
}

fn explain(group: &LeaderGroup) -> String {
    format!("{} says what each pod lacks, and what happens next", command("explain", group))
}

/// What to do if no other pod could take over.
fn more_pods(group: &LeaderGroup, workloads: &[&Workload]) -> String {
    let namespace = group.namespace().unwrap_or_default();
    if group.status.as_ref().is_some_and(|status| status.replicas > 1) {
        return explain(group);
    }
    match workloads.iter().find_map(|workload| workload.scalable()) {
        Some(scalable) => format!("add a replica: `kubectl -n {namespace} scale {scalable} --replicas 2`"),
        None => "add a replica: the group has one pod only".to_owned(),
    }
}

/// What to do about a condition that is True, and whose message complains.
pub(super) fn remedy_of_complaint(reason: &str) -> &'static str {
    let is = |other: Reason| other.to_string() == reason;
    if is(Reason::RoleLabelInTemplate) {
        "take the role label out of the pod template"
    } else if is(Reason::DeletionRefused) {
        "set podDeletion.enabled in the chart, or choose another election.onDemote"
    } else if is(Reason::HookFailed) {
        "mend the hook that the pod serves (docs/operations.md, Hooks)"
    } else {
        Remedy::ELSEWHERE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complaint_has_a_remedy_of_its_own() {
        for reason in Reason::COMPLAINTS {
            assert_ne!(remedy_of_complaint(&reason.to_string()), Remedy::ELSEWHERE, "{reason}");
        }
    }
}
