//! The pods of a group: what the kubelet reports of each, and what follows from the group's status.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use kube::ResourceExt as _;
use serde::Serialize;

use super::ink::Ink;
use crate::api::{LabelSelectorOperator, LeaderGroup, PodSelector};

/// The role that a pod's label gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum PodRole {
    Active,
    Standby,
    None,
}

impl PodRole {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::None => "-",
        }
    }
}

/// One pod of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodLine {
    pub(super) pod: String,
    pub(super) role: PodRole,
    pub(super) node: Option<String>,
    /// Whether the kubelet reports it Ready, and it is not being deleted.
    pub(super) ready: bool,
    /// Whether it could be active now; none if that does not follow from the status.
    pub(super) eligible: Option<bool>,
    pub(super) restarts: i32,
    pub(super) created: Option<Timestamp>,
    /// What the kubelet reports.
    pub(super) health: String,
}

impl PodLine {
    /// The word for whether it could be active now.
    pub(super) fn eligible_word(&self) -> &'static str {
        match self.eligible {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        }
    }

    pub(super) fn ink(&self) -> Ink {
        match (self.eligible, self.role) {
            (Some(true), _) => Ink::Good,
            (Some(false), PodRole::Active) => Ink::Bad,
            _ => Ink::Warning,
        }
    }
}

/// The pods of a group: the active one first, then by name.
pub(super) fn lines(group: &LeaderGroup, pods: &[Pod]) -> Vec<PodLine> {
    let mut all: Vec<PodLine> = pods.iter().map(|pod| line(group, pod)).collect();
    all.sort_by(|a, b| (a.role, &a.pod).cmp(&(b.role, &b.pod)));
    conclude(group, &mut all);
    all
}

fn line(group: &LeaderGroup, pod: &Pod) -> PodLine {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    PodLine {
        pod: pod.name_any(),
        role: role(group, pod),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ready: is_ready(pod),
        eligible: None,
        restarts: containers.map(|container| container.restart_count).sum(),
        created: pod.creation_timestamp().map(|time| time.0),
        health: health(pod),
    }
}

/// Which pods could be active. The status has only their number; but one that is not Ready is none of them, and if the
/// number of those that are left is that of the status, they are.
fn conclude(group: &LeaderGroup, pods: &mut [PodLine]) {
    let Some(status) = group.status.as_ref().filter(|status| status.observed_generation >= 0) else { return };
    // With an agent, the program of the active pod may still be starting.
    let may_start = |pod: &PodLine| group.spec.agent.is_some() && pod.role == PodRole::Active;
    let possible = |pod: &PodLine| pod.ready || may_start(pod);
    let left = pods.iter().filter(|pod| possible(pod)).count();
    let is_current = usize::try_from(status.replicas) == Ok(pods.len());
    let verdict = match usize::try_from(status.eligible).unwrap_or(usize::MAX) {
        0 if is_current => Some(false),
        eligible if is_current && eligible == left => Some(true),
        _ => None,
    };
    for pod in pods {
        pod.eligible = if possible(pod) { verdict } else { Some(false) };
    }
}

fn role(group: &LeaderGroup, pod: &Pod) -> PodRole {
    let routing = &group.spec.routing;
    match pod.labels().get(&routing.role_label) {
        Some(value) if *value == routing.active_value => PodRole::Active,
        Some(value) if *value == routing.standby_value => PodRole::Standby,
        _ => PodRole::None,
    }
}

fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn is_ready(pod: &Pod) -> bool {
    let ready = pod_condition(pod, "Ready").is_some_and(|ready| ready.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// What the kubelet or the control plane reports of a pod, the most important first.
fn health(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.clone());
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    if pod.metadata.deletion_timestamp.is_some() {
        return "is being deleted".to_owned();
    }
    if matches!(phase, "Succeeded" | "Failed") {
        return format!("has ended: {}", reason.unwrap_or_else(|| phase.to_owned()));
    }
    let mut containers = status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    if let Some(problem) = containers.find_map(container_problem) {
        return problem;
    }
    if let Some(unscheduled) = pod_condition(pod, "PodScheduled").filter(|it| it.status == "False") {
        return format!("has no node: {}", unscheduled.message.as_deref().unwrap_or("no reason is given"));
    }
    match pod_condition(pod, "Ready") {
        Some(ready) if ready.status == "True" => "Ready".to_owned(),
        Some(ready) => {
            let why = ready.message.as_ref().or(ready.reason.as_ref());
            why.map_or_else(|| "not Ready".to_owned(), |why| format!("not Ready: {why}"))
        }
        None => format!("{phase}, no report about its readiness yet"),
    }
}

fn container_problem(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    let name = &container.name;
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    if let Some(ended) = &state.terminated {
        let reason = ended.reason.as_deref().unwrap_or("ended");
        return Some(format!("container {name}: {reason}, exit code {}", ended.exit_code));
    }
    let waiting = state.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| *reason != "ContainerCreating")?;
    let last = last.map_or_else(String::new, |ended| {
        format!(" (last: {}, exit code {})", ended.reason.as_deref().unwrap_or("ended"), ended.exit_code)
    });
    Some(format!("container {name}: {reason}{last}"))
}

/// The selector as a query of the API server.
pub(super) fn query(selector: &PodSelector) -> String {
    let equal = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let others = selector.match_expressions.iter().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match requirement.operator {
            LabelSelectorOperator::In => format!("{key} in ({values})"),
            LabelSelectorOperator::NotIn => format!("{key} notin ({values})"),
            LabelSelectorOperator::Exists => key.clone(),
            LabelSelectorOperator::DoesNotExist => format!("!{key}"),
        }
    });
    equal.chain(others).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::samples::{crashing, object, pod, pods, web};

    fn eligible(group: &LeaderGroup, pods: &[Pod]) -> Vec<(String, Option<bool>)> {
        lines(group, pods).into_iter().map(|line| (line.pod, line.eligible)).collect()
    }

    fn with_eligible(eligible: u32) -> LeaderGroup {
        let mut group = web();
        group.status.as_mut().expect("a status").eligible = eligible;
        group
    }

    #[test]
    fn what_follows_from_the_number_of_eligible_pods_is_said_and_nothing_else() {
        let some = |verdicts: [Option<bool>; 3]| {
            ["web-1", "web-0", "web-2"].map(str::to_owned).into_iter().zip(verdicts).collect::<Vec<_>>()
        };
        assert_eq!(eligible(&web(), &pods()), some([Some(true); 3]));
        assert_eq!(eligible(&with_eligible(0), &pods()), some([Some(false); 3]));
        assert_eq!(eligible(&with_eligible(2), &pods()), some([None; 3]));
        let mut one_down = pods();
        one_down[2] = crashing("web-2");
        assert_eq!(eligible(&with_eligible(2), &one_down), some([Some(true), Some(true), Some(false)]));
        assert_eq!(eligible(&with_eligible(1), &one_down), some([None, None, Some(false)]));
        // The status is of another number of pods.
        let mut group = web();
        group.status.as_mut().expect("a status").replicas = 4;
        assert_eq!(eligible(&group, &pods()), some([None; 3]));
        group.status = None;
        assert_eq!(eligible(&group, &pods()), some([None; 3]));
    }

    #[test]
    fn the_active_pod_of_agents_may_be_eligible_before_it_is_ready() {
        let mut group = with_eligible(3);
        group.spec.agent = Some(crate::api::AgentSpec::default());
        let mut starting = pods();
        starting[1] = pod("web-1", "active", "False");
        assert_eq!(eligible(&group, &starting)[0], ("web-1".to_owned(), Some(true)));
    }

    #[test]
    fn the_health_is_the_most_important_thing_that_the_kubelet_reports() {
        let of = |change: serde_json::Value| {
            let mut value = serde_json::to_value(pod("web-0", "standby", "True")).expect("a pod");
            for (key, part) in change.as_object().expect("an object") {
                for (name, field) in part.as_object().expect("an object") {
                    value[key][name] = field.clone();
                }
            }
            health(&object(value))
        };
        assert_eq!(of(json!({})), "Ready");
        assert_eq!(
            of(json!({ "metadata": { "deletionTimestamp": "2026-11-20T12:00:00Z" } })),
            "is being deleted"
        );
        assert_eq!(of(json!({ "status": { "phase": "Failed", "reason": "Evicted" } })), "has ended: Evicted");
        let unscheduled =
            json!([{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" }]);
        assert_eq!(
            of(json!({ "status": { "conditions": unscheduled } })),
            "has no node: 0/3 nodes are available"
        );
        assert_eq!(
            health(&crashing("web-0")),
            "container main: CrashLoopBackOff (last: OOMKilled, exit code 137)"
        );
        assert_eq!(
            of(json!({ "status": { "conditions": [] } })),
            "Running, no report about its readiness yet"
        );
    }

    #[test]
    fn a_selector_becomes_the_query_of_kubernetes() {
        let selector: PodSelector = object(json!({
            "matchLabels": { "app": "web" },
            "matchExpressions": [
                { "key": "tier", "operator": "In", "values": ["a", "b"] },
                { "key": "zone", "operator": "NotIn", "values": ["c"] },
                { "key": "x", "operator": "Exists" },
                { "key": "y", "operator": "DoesNotExist" },
            ],
        }));
        assert_eq!(query(&selector), "app=web,tier in (a,b),zone notin (c),x,!y");
    }
}
