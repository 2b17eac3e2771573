//! The status for people and tools: computed from what is known, written when it differs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{
    group::{Charge, Entry},
    message::Trouble,
};
use crate::{
    api::{ActivePod, ConditionType, LeaderGroupStatus, Reason, Unreadable},
    election::{Member, Phase, Role, Standing},
};

/// What keeps this replica from working for any group.
pub(super) enum Hindrance {
    /// The lock's database.
    Lock(String),
    /// The pods cannot be watched.
    Pods(String),
}

/// One condition before it gets its time of transition.
struct Finding {
    kind: ConditionType,
    status: bool,
    reason: Reason,
    message: String,
}

fn finding(kind: ConditionType, status: bool, reason: Reason, message: impl Into<String>) -> Finding {
    Finding { kind, status, reason, message: message.into() }
}

/// The status as it should read. While it `settles`, a replica that was just put in charge does not count those out that
/// it has not heard of yet.
pub(super) fn status(entry: &Entry, hindrance: Option<&Hindrance>, settles: bool) -> LeaderGroupStatus {
    let old = entry.status().cloned().unwrap_or_default();
    let members = &entry.machine.world().members;
    let eligible = members.iter().filter(|member| member.standing == Standing::Eligible).count();
    let (eligible, members) = (count(eligible), count(members.len()));
    let eligible = if settles { eligible.max(old.eligible.min(members)) } else { eligible };
    let generation = entry.object.metadata.generation.unwrap_or_default();
    let findings = findings(entry, eligible, members, hindrance);
    LeaderGroupStatus {
        observed_generation: generation,
        active: active(entry, &old),
        token: old.token,
        declaration: old.declaration.clone(),
        eligible,
        members,
        ready: format!("{eligible}/{members}"),
        history: entry.history.clone(),
        conditions: conditions(findings, generation, &old.conditions),
    }
}

/// What turns the status on the API server into `wanted`; none when it reads so already. Declaration and token are not in
/// it: they are written by compare-and-set alone.
pub(super) fn patch(entry: &Entry, wanted: &LeaderGroupStatus) -> Option<Value> {
    (entry.status() != Some(wanted)).then(|| {
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

/// What the log is told once: why the group is not ready, when that is news and will not be over by itself in a moment.
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
fn active(entry: &Entry, old: &LeaderGroupStatus) -> Option<ActivePod> {
    let member = labelled_holder(entry)?;
    let known =
        old.active.as_ref().filter(|active| active.uid == member.pod.uid).map(|active| active.since.clone());
    let recorded = entry.history.first().filter(|entry| entry.to.as_ref() == Some(&member.pod.name));
    let since =
        known.or_else(|| recorded.map(|entry| entry.at.clone())).unwrap_or_else(|| Time(Timestamp::now()));
    Some(ActivePod {
        pod: member.pod.name.clone(),
        uid: member.pod.uid.clone(),
        node: member.node.clone().unwrap_or_default(),
        since,
    })
}

fn labelled_holder(entry: &Entry) -> Option<&Member> {
    let holder = match entry.charge {
        Charge::Ours => entry.machine.holder().cloned(),
        _ => entry.declared().holder,
    };
    let holder = holder?;
    entry.machine.member(&holder.uid).filter(|member| member.role == Role::Active)
}

fn findings(entry: &Entry, eligible: u32, members: u32, hindrance: Option<&Hindrance>) -> Vec<Finding> {
    use ConditionType as C;
    let accepted = accepted(entry);
    let active = activity(entry, eligible, members, hindrance);
    let routed = routed(entry);
    let store = match (hindrance, &entry.trouble) {
        (Some(Hindrance::Lock(outage)), _) => finding(
            C::LockStoreReachable,
            false,
            Reason::LockStoreUnavailable,
            format!("{outage}; labels stay as they are"),
        ),
        (_, Some(Trouble::Lock(text))) => {
            finding(C::LockStoreReachable, false, Reason::LockStoreUnavailable, text.clone())
        }
        _ => finding(C::LockStoreReachable, true, Reason::AsExpected, "the lock's database answers"),
    };
    // One that is unwell is none of those that count as eligible.
    let unwell = labelled_holder(entry).is_some_and(|member| member.standing.against().is_some());
    let others = if unwell { eligible } else { eligible.saturating_sub(1) };
    let redundant = if others > 0 {
        let plural = if others == 1 { "pod" } else { "pods" };
        finding(C::Redundant, true, Reason::AsExpected, format!("{others} {plural} could take over"))
    } else {
        let message = "no other pod could take over now; check the pods that are not ready, or add replicas";
        finding(C::Redundant, false, Reason::NoStandby, message)
    };
    let ready = match [&accepted, &active, &routed].into_iter().find(|finding| !finding.status) {
        Some(first) => finding(C::Ready, false, first.reason, first.message.clone()),
        None => finding(C::Ready, true, active.reason, active.message.clone()),
    };
    let stalled = if accepted.status {
        finding(C::Stalled, false, Reason::AsExpected, "nothing waits for a user")
    } else {
        finding(C::Stalled, true, accepted.reason, accepted.message.clone())
    };
    vec![accepted, active, redundant, routed, store, ready, stalled]
}

fn accepted(entry: &Entry) -> Finding {
    use ConditionType::Accepted;
    if let Some(invalid) = &entry.invalid {
        return finding(Accepted, false, Reason::InvalidSpec, invalid.clone());
    }
    if let Charge::Foreign(other) = &entry.charge {
        let message = format!(
            "the lock key {} is in use by {other}; delete that group, or create this one anew with another spec.lock.key",
            entry.key
        );
        return finding(Accepted, false, Reason::KeyInUse, message);
    }
    if !entry.contested.is_empty() {
        let others: BTreeSet<_> = entry.contested.values().map(String::as_str).collect();
        let others: Vec<_> = others.into_iter().collect();
        let message = format!(
            "the older LeaderGroup {} selects pods of this one; narrow one of the two selectors. Nobody is promoted here",
            others.join(", ")
        );
        return finding(Accepted, false, Reason::SelectedByOtherGroup, message);
    }
    if let Some(owner) = entry.owners.confirmed() {
        let message = format!(
            "{owner} selects its pods by the label {}, so a pod whose role changes is replaced at once; take the label out of \
             its selector and its template. Nobody is promoted here",
            entry.group.marks.label
        );
        return finding(Accepted, false, Reason::RoleLabelInOwnerSelector, message);
    }
    finding(Accepted, true, Reason::AsExpected, "the spec can be carried out")
}

fn activity(entry: &Entry, eligible: u32, members: u32, hindrance: Option<&Hindrance>) -> Finding {
    use ConditionType::Active;
    if let Some(member) = labelled_holder(entry) {
        let name = &member.pod.name;
        let token = entry.machine.declared().token;
        return match member.standing {
            Standing::Failing(reason) => {
                let others = if eligible == 0 { ", and nobody can take over" } else { "" };
                finding(Active, false, reason, format!("{name} is active but unwell{others}"))
            }
            Standing::Silent => {
                finding(Active, false, Reason::Silent, format!("{name} is active but silent"))
            }
            Standing::Ended(reason) => finding(Active, false, reason, format!("{name} is active but ending")),
            _ if entry.object.spec.paused => finding(
                Active,
                true,
                Reason::Paused,
                format!("{name} is active with token {token}; elections are paused"),
            ),
            _ => finding(Active, true, Reason::Active, format!("{name} is active with token {token}")),
        };
    }
    if entry.object.spec.paused {
        return finding(Active, false, Reason::Paused, "nobody is active, and spec.paused keeps it so");
    }
    if let Some(Hindrance::Pods(problem)) = hindrance {
        let message = format!("the operator cannot watch the pods: {problem}");
        return finding(Active, false, Reason::WatchFailed, message);
    }
    if members == 0 {
        let message =
            "spec.selector matches no pod in this namespace; compare it with the labels of the pods";
        return finding(Active, false, Reason::NoPods, message);
    }
    if let Some(Hindrance::Lock(outage)) = hindrance {
        return finding(Active, false, Reason::LockStoreUnavailable, outage.clone());
    }
    if eligible == 0 {
        let message = format!(
            "none of {members} pods could be active; check that they are ready and answer their probe"
        );
        return finding(Active, false, Reason::NoEligiblePod, message);
    }
    match &entry.trouble {
        Some(Trouble::Refused(text)) => finding(Active, false, Reason::WriteRefused, text.clone()),
        Some(Trouble::Unreachable(text)) => finding(Active, false, Reason::Changing, text.clone()),
        Some(Trouble::Lock(text)) => finding(Active, false, Reason::LockStoreUnavailable, text.clone()),
        None => finding(Active, false, Reason::Changing, "a change of holder is under way"),
    }
}

fn routed(entry: &Entry) -> Finding {
    use ConditionType::Routed;
    match &entry.trouble {
        Some(Trouble::Refused(text)) => return finding(Routed, false, Reason::WriteRefused, text.clone()),
        Some(Trouble::Unreachable(text)) => return finding(Routed, false, Reason::Changing, text.clone()),
        _ => {}
    }
    let settled = match entry.machine.phase() {
        Phase::Stable | Phase::Observing | Phase::Verifying { .. } => true,
        // What failed may have been a mere look.
        Phase::BackingOff { .. } => entry.machine.keeps_its_label(),
        _ => false,
    };
    let strays =
        entry.machine.world().members.iter().filter(|member| member.role == Role::Active).count() > 1;
    if settled && !strays {
        finding(Routed, true, Reason::AsExpected, "the pods' labels are what was declared")
    } else {
        finding(Routed, false, Reason::Changing, "labels are being changed")
    }
}

/// The status of a group that cannot be read; none when it says so already.
pub(super) fn of_unreadable(unreadable: &Unreadable) -> Option<Value> {
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

fn conditions(findings: Vec<Finding>, generation: i64, old: &[Condition]) -> Vec<Condition> {
    let old: BTreeMap<_, _> = old.iter().map(|condition| (condition.type_.as_str(), condition)).collect();
    let condition = |finding: Finding| {
        let type_ = finding.kind.to_string();
        let status = if finding.status { "True" } else { "False" };
        let same = old.get(type_.as_str()).filter(|old| old.status == status);
        let since = same.map_or_else(|| Time(Timestamp::now()), |old| old.last_transition_time.clone());
        Condition {
            type_,
            status: status.to_owned(),
            reason: finding.reason.to_string(),
            message: finding.message,
            last_transition_time: since,
            observed_generation: Some(generation),
        }
    };
    findings.into_iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::{
        api::{Declaration, LeaderGroup, PodRef},
        election::{Event, Group, Outcome, Policy, Row, World},
        operator::message::GroupName,
    };

    /// A settled group whose row could not be read anew.
    fn backing_off(role: Role) -> Entry {
        let group = json!({ "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
            "spec": { "selector": { "matchLabels": { "app": "web" } } } });
        let group: LeaderGroup = serde_json::from_value(group).expect("a group");
        let name = GroupName { namespace: "shop".into(), name: "web".into() };
        let mut entry = Entry::new(group, name, "c1", Duration::ZERO).expect("it has a name");
        let pod = PodRef { name: "web-0".into(), uid: "p0".into() };
        let grant = Uuid::from_u128(7);
        let holder = Some(pod.clone());
        let declared = Declaration { token: 5, grant: Some(grant.to_string()), holder, strip: Vec::new() };
        let member = Member {
            pod: pod.clone(),
            node: None,
            version: "1".into(),
            role,
            stamp: Some(5),
            stamped_by_us: true,
            standing: Standing::Unproven,
            created: 0,
        };
        // Paused, so that a lost label is not put back.
        let policy = Policy { paused: true, ..Policy::default() };
        let world = World { members: vec![member], declared: declared.clone(), policy, ..World::default() };
        let row =
            Row { token: 5, grant: Some(grant), owner: Some(pod), confirmed: true, pending: Vec::new() };
        let (mut machine, now) = (Group::new(world.clone()), Duration::from_secs(100));
        let asked = machine.step(Event::Owned { seed: Uuid::from_u128(1_000) }, now);
        let read = Outcome::Read { row: Some(row), declared: Some(declared) };
        machine.step(Event::Outcome(asked[0].0, read, world.clone()), now);
        let asked = machine.step(Event::Doubt, now);
        machine.step(Event::Outcome(asked[0].0, Outcome::Failed, world), now);
        assert!(matches!(machine.phase(), Phase::BackingOff { .. }), "{:?}", machine.phase());
        entry.machine = machine;
        entry
    }

    #[test]
    fn a_group_is_routed_while_its_labels_stand_whatever_is_looked_at_again() {
        for (role, stands) in [(Role::Active, true), (Role::Standby, false)] {
            let routed = routed(&backing_off(role));
            assert_eq!(routed.status, stands, "{role:?}: {}", routed.message);
        }
    }
}
