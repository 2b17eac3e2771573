//! The status of a group: computed from what is known, and written if it differs.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{
    conditions::{View, conditions, finding, findings, labelled_holder},
    outage::Hindrance,
};
use crate::{
    api::{ActivePod, ConditionType, LeaderGroupStatus, Reason, Unreadable},
    election::Standing,
};

/// The status as it should read. While the group `settles`, its new owner has not yet heard of all pods, and does not
/// count fewer eligible pods than before.
pub(super) fn status(view: View<'_>, hindrance: Option<&Hindrance>, settles: bool) -> LeaderGroupStatus {
    let record = view.group.record();
    let old = record.status().cloned().unwrap_or_default();
    let members = &view.group.election().world().members;
    let eligible = members.iter().filter(|member| member.standing == Standing::Eligible).count();
    let (eligible, members) = (count(eligible), count(members.len()));
    let eligible = if settles { eligible.max(old.eligible.min(members)) } else { eligible };
    let generation = record.object.metadata.generation.unwrap_or_default();
    let findings = findings(view, eligible, members, hindrance);
    LeaderGroupStatus {
        observed_generation: generation,
        active: active(view, &old),
        token: old.token,
        declaration: old.declaration.clone(),
        eligible,
        members,
        ready: format!("{eligible}/{members}"),
        history: view.group.history.entries().to_vec(),
        conditions: conditions(findings, generation, &old.conditions),
    }
}

/// The patch that turns the status into `wanted`; `None` if it reads so already. Declaration and token are not part of
/// it: they are written by compare-and-set only.
pub(super) fn patch(old: Option<&LeaderGroupStatus>, wanted: &LeaderGroupStatus) -> Option<Value> {
    (old != Some(wanted)).then(|| {
        json!({
            "observedGeneration": wanted.observed_generation,
            "active": wanted.active,
            "eligible": wanted.eligible,
            "members": wanted.members,
            "ready": wanted.ready,
            "history": wanted.history,
            "conditions": wanted.conditions,
        })
    })
}

/// Why the group is not ready, to be logged once: `None` if that was logged before, or will soon be over by itself.
pub(super) fn news<'a>(
    old: Option<&LeaderGroupStatus>,
    wanted: &'a LeaderGroupStatus,
) -> Option<&'a Condition> {
    let now = readiness(wanted).filter(|now| now.status == "False")?;
    let known = old.and_then(readiness).is_some_and(|before| before.reason == now.reason);
    let passing = [Reason::Changing, Reason::Pending].iter().any(|reason| now.reason == reason.to_string());
    (!known && !passing).then_some(now)
}

fn readiness(status: &LeaderGroupStatus) -> Option<&Condition> {
    let kind = ConditionType::Ready.to_string();
    status.conditions.iter().find(|condition| condition.type_ == kind)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The holder with the active label on it, since the time it got it.
fn active(view: View<'_>, old: &LeaderGroupStatus) -> Option<ActivePod> {
    let member = labelled_holder(view)?;
    let known =
        old.active.as_ref().filter(|active| active.uid == member.pod.uid).map(|active| active.since.clone());
    let recorded =
        view.group.history.entries().first().filter(|entry| entry.to.as_ref() == Some(&member.pod.name));
    let since =
        known.or_else(|| recorded.map(|entry| entry.at.clone())).unwrap_or_else(|| Time(Timestamp::now()));
    Some(ActivePod {
        pod: member.pod.name.clone(),
        uid: member.pod.uid.clone(),
        node: member.node.clone().unwrap_or_default(),
        since,
    })
}

/// The patch that reports that a group cannot be decoded; `None` if its status says so already.
pub(super) fn of_undecodable(unreadable: &Unreadable) -> Option<Value> {
    use ConditionType as C;
    let generation = unreadable.metadata.generation.unwrap_or_default();
    let findings = [(C::Accepted, false), (C::Ready, false), (C::Stalled, true)]
        .map(|(kind, status)| finding(kind, status, Reason::InvalidSpec, unreadable.problem.clone()));
    let kinds = findings.each_ref().map(|finding| finding.kind.to_string());
    let before = unreadable.conditions();
    let told = conditions(findings.into(), generation, &before);
    if told.iter().all(|condition| before.contains(condition)) {
        return None;
    }
    let others = before.into_iter().filter(|other| !kinds.contains(&other.type_));
    let all: Vec<Condition> = told.into_iter().chain(others).collect();
    Some(json!({ "observedGeneration": generation, "conditions": all }))
}
