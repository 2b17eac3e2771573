//! What the status of a group amounts to: one word, and one sentence.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::ResourceExt;
use serde::Serialize;

use super::{holder, ink::Ink};
use crate::api::{ConditionType, LeaderGroup, LeaderGroupStatus, Reason, SWITCHOVER_ANNOTATION, Sighting};

/// The states of a group, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum State {
    /// No pod is active, or the labels or endpoints are not as they should be.
    NotReady,
    /// The operator has not seen it, or its object cannot be read.
    Unknown,
    /// A pod is active, and if it fails, no other one may follow.
    AtRisk,
    /// A pod is active, and stays so.
    Paused,
    /// It is being deleted.
    Deleting,
    /// All is well.
    Ready,
}

impl State {
    /// The word for people.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::NotReady => "NOT READY",
            Self::Unknown => "unknown",
            Self::AtRisk => "at risk",
            Self::Paused => "paused",
            Self::Deleting => "deleting",
            Self::Ready => "ready",
        }
    }

    pub(super) fn ink(self) -> Ink {
        match self {
            Self::NotReady => Ink::Bad,
            Self::Unknown | Self::AtRisk | Self::Paused | Self::Deleting => Ink::Warning,
            Self::Ready => Ink::Good,
        }
    }
}

/// One group in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupLine {
    pub(super) namespace: String,
    pub(super) group: String,
    pub(super) state: State,
    /// The active pod according to the status.
    pub(super) active: Option<String>,
    /// Whether that pod does not exist any more.
    pub(super) is_gone: bool,
    pub(super) node: Option<String>,
    pub(super) eligible: u32,
    pub(super) replicas: u32,
    /// Since when the pod has been active, or without one, since when the group has not been ready.
    pub(super) since: Option<Timestamp>,
    pub(super) token: i64,
    /// What is wrong, in the operator's words; empty if nothing is.
    pub(super) message: String,
}

impl GroupLine {
    /// The line of a group, from the group alone.
    pub(super) fn of(sighting: &Sighting) -> Self {
        Self::with_pods::<Pod>(sighting, None)
    }

    /// The line of a group. `pods` are those of its namespace or of the group, if they could be read.
    pub(super) fn with_pods<P: ResourceExt>(sighting: &Sighting, pods: Option<&[P]>) -> Self {
        match &sighting.0 {
            Ok(group) => {
                let is_gone = pods.is_some_and(|pods| holder::gone(group, pods).is_some());
                Self { is_gone, ..of_group(group, judged(group, pods)) }
            }
            Err(unreadable) => Self {
                namespace: unreadable.metadata.namespace.clone().unwrap_or_default(),
                group: unreadable.metadata.name.clone().unwrap_or_default(),
                state: State::Unknown,
                active: None,
                is_gone: false,
                node: None,
                eligible: 0,
                replicas: 0,
                since: None,
                token: 0,
                message: format!("this version of the plugin cannot read it: {}", unreadable.problem),
            },
        }
    }
}

fn of_group(group: &LeaderGroup, (state, message): (State, String)) -> GroupLine {
    let unseen = LeaderGroupStatus::default();
    let status = group.status.as_ref().unwrap_or(&unseen);
    let active = status.active.as_ref();
    let ready_since = condition(group, ConditionType::Ready).map(|ready| &ready.last_transition_time);
    let since = active.map(|active| &active.since).or(ready_since);
    GroupLine {
        namespace: group.namespace().unwrap_or_default(),
        group: group.name_any(),
        state,
        active: active.map(|active| active.pod.clone()),
        is_gone: false,
        node: active.and_then(|active| active.node.clone()),
        eligible: status.eligible,
        replicas: status.replicas,
        since: since.filter(|_| is_seen(group)).map(|Time(since)| *since),
        token: status.token,
        message,
    }
}

/// Whether an operator has ever reported about the group.
pub(super) fn is_seen(group: &LeaderGroup) -> bool {
    group.status.as_ref().is_some_and(|status| status.observed_generation >= 0)
}

/// Whether the operator has seen the present spec.
pub(super) fn is_up_to_date(group: &LeaderGroup) -> bool {
    let observed = group.status.as_ref().map_or(-1, |status| status.observed_generation);
    group.metadata.generation.is_none_or(|generation| observed >= generation)
}

/// A condition of a group.
pub(super) fn condition(group: &LeaderGroup, kind: ConditionType) -> Option<&Condition> {
    group.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind.name())
}

/// A condition that is False.
pub(super) fn failed(group: &LeaderGroup, kind: ConditionType) -> Option<&Condition> {
    condition(group, kind).filter(|condition| condition.status == "False")
}

/// What the spec or the cluster lacks although the group works: the message of a condition that is True for a reason.
pub(super) fn complaint(group: &LeaderGroup) -> Option<&Condition> {
    condition(group, ConditionType::Accepted)
        .filter(|accepted| Reason::COMPLAINTS.iter().any(|reason| reason.to_string() == accepted.reason))
}

/// The request for a switchover that has no result yet.
pub(super) fn pending_switchover(group: &LeaderGroup) -> Option<&str> {
    let request = group.annotations().get(SWITCHOVER_ANNOTATION)?;
    let shown: String = request.chars().take(64).collect();
    let last = group.status.as_ref().and_then(|status| status.switchover.as_ref());
    let answered = last.is_some_and(|last| last.request == shown);
    (!answered && !request.is_empty()).then_some(request.as_str())
}

/// The state of a group, and why it is not the best one. `pods` are its pods, if they could be read.
pub(super) fn judged<P: ResourceExt>(group: &LeaderGroup, pods: Option<&[P]>) -> (State, String) {
    let (state, message) = reported(group);
    match pods.and_then(|pods| holder::gone(group, pods)) {
        Some(pod) if state != State::Deleting => {
            // What an operator has reported may be why no other pod follows.
            let is_told =
                state == State::NotReady || failed(group, ConditionType::LockStoreReachable).is_some();
            let check = "check that the operator runs (kubectl leadergroup doctor)".to_owned();
            let why = if is_told && !message.is_empty() { message } else { check };
            (State::NotReady, format!("{}: {why}", holder::gone_words(&pod)))
        }
        _ => (state, message),
    }
}

/// The state that an operator has reported last.
fn reported(group: &LeaderGroup) -> (State, String) {
    let message = |kind| failed(group, kind).map(|condition| condition.message.clone());
    if group.metadata.deletion_timestamp.is_some() {
        let rest = "the operator takes its labels off the pods, and then removes its finalizer";
        return (State::Deleting, format!("it is being deleted: {rest}"));
    }
    let ready = condition(group, ConditionType::Ready);
    match ready.map(|ready| ready.status.as_str()) {
        Some("True") => {}
        Some("False") => return (State::NotReady, message(ConditionType::Ready).unwrap_or_default()),
        _ => {
            let told = ready.map(|ready| ready.message.clone());
            return (State::Unknown, told.unwrap_or_else(|| "its status has no condition Ready".to_owned()));
        }
    }
    if let Some(problem) = message(ConditionType::LockStoreReachable) {
        return (State::AtRisk, format!("no failover while the database is away: {problem}"));
    }
    if let Some(problem) = message(ConditionType::Redundant) {
        return (State::AtRisk, problem);
    }
    if group.spec.paused {
        return (State::Paused, "paused: the active pod is not replaced, whatever happens to it".to_owned());
    }
    if let Some(problem) = message(ConditionType::Probed) {
        return (State::AtRisk, problem);
    }
    if let Some(complaint) = complaint(group) {
        return (State::AtRisk, complaint.message.clone());
    }
    if !is_up_to_date(group) {
        return (State::Unknown, "the operator has not seen the last change of its spec yet".to_owned());
    }
    (State::Ready, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::samples::{pods, set, web, without_active};

    fn state_of(change: impl FnOnce(&mut LeaderGroup)) -> (State, String) {
        let mut group = web();
        change(&mut group);
        judged::<Pod>(&group, None)
    }

    #[test]
    fn the_state_is_the_worst_that_the_status_tells() {
        assert_eq!(judged(&web(), Some(&pods())), (State::Ready, String::new()));
        assert_eq!(judged(&without_active(), Some(&pods())).0, State::NotReady);
        let (state, why) = judged(&web(), Some(&pods()[..1]));
        assert!(
            state == State::NotReady
                && why.contains("web-1 does not exist any more")
                && why.contains("doctor"),
            "{why}"
        );
        let mut away = web();
        set(&mut away, "LockStoreReachable", "False", "X", "connection refused");
        let (state, why) = judged(&away, Some(&pods()[..1]));
        assert!(state == State::NotReady && why.ends_with("connection refused"), "{why}");
        let (state, why) =
            state_of(|group| set(group, "LockStoreReachable", "False", "X", "connection refused"));
        assert_eq!(
            (state, why.as_str()),
            (State::AtRisk, "no failover while the database is away: connection refused")
        );
        let (state, why) = state_of(|group| set(group, "Probed", "False", "NoProbe", "no probe"));
        assert_eq!((state, why.as_str()), (State::AtRisk, "no probe"));
        let (state, why) = state_of(|group| set(group, "Accepted", "True", "HookFailed", "web-0 refuses"));
        assert_eq!((state, why.as_str()), (State::AtRisk, "web-0 refuses"));
        assert_eq!(state_of(|group| group.spec.paused = true).0, State::Paused);
        assert_eq!(state_of(|group| group.metadata.generation = Some(3)).0, State::Unknown);
        assert_eq!(state_of(|group| group.status = None).0, State::Unknown);
        let (state, why) = state_of(|group| group.status = Some(LeaderGroupStatus::default()));
        assert_eq!(state, State::Unknown);
        assert!(why.contains("has not seen this group yet"), "{why}");
    }

    #[test]
    fn a_request_waits_until_the_status_answers_it() {
        let mut group = web();
        assert_eq!(pending_switchover(&group), None);
        let long = "x".repeat(70);
        group.annotations_mut().insert(SWITCHOVER_ANNOTATION.to_owned(), long.clone());
        assert_eq!(pending_switchover(&group), Some(long.as_str()));
        let answer = serde_json::json!({ "request": "x".repeat(64), "result": "Done", "message": "" });
        group.status.as_mut().expect("a status").switchover =
            serde_json::from_value(answer).expect("an answer");
        assert_eq!(pending_switchover(&group), None);
    }

    #[test]
    fn a_group_that_cannot_be_read_is_shown_all_the_same() {
        let object = serde_json::json!({
            "metadata": { "namespace": "shop", "name": "odd" }, "spec": { "selector": {}, "deletionPolicy": "Explode" },
        });
        let line = GroupLine::of(&serde_json::from_value(object).expect("any object"));
        assert_eq!((line.group.as_str(), line.state), ("odd", State::Unknown));
        assert!(line.message.contains("deletionPolicy"), "{}", line.message);
    }
}
