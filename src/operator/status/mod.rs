//! The status of a group: computed from what is known, and written if it differs.

pub(super) mod causes;
pub(super) mod conditions;
pub(super) mod events;
mod refused;
pub(super) mod undecodable;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{group::gist::Gist, index::outage::Hindrance};
use crate::api::{
    ActivePod, ConditionType, LeaderGroupStatus, Reason, SwitchoverResult, SwitchoverStatus, Unreadable,
};
use conditions::{Counts, Finding, View, conditions, finding, findings, labelled_holder};
use refused::refusals_of_change;

/// What shows the time of day, for what users read. Nothing is decided by it: it may be set forward and back.
pub type WallClock = fn() -> Timestamp;

/// The status as it should read. While the group `awaits_first_probes`, its new owner has not yet heard all pods, and
/// does not count fewer eligible pods than before. What is new in it is so since `at`.
pub(super) fn status(
    view: View<'_>,
    hindrance: Option<&Hindrance>,
    awaits_first_probes: bool,
    at: Timestamp,
) -> LeaderGroupStatus {
    let record = view.group.record();
    let old = record.status().cloned().unwrap_or_default();
    let counts = Counts::of(view, awaits_first_probes.then_some(old.eligible));
    let Counts { replicas, eligible, .. } = counts;
    let generation = record.object.metadata.generation.unwrap_or_default();
    let mut findings = findings(view, counts, hindrance);
    let known = old.observed_generation >= 0;
    if known && hindrance.is_some() && !view.group.is_owned() {
        // Without ownership a replica knows what keeps it from working, and what the labels are. All else stays as the
        // owner last reported it.
        let inactive = labelled_holder(view).is_none();
        findings.retain(|finding| match finding.kind {
            ConditionType::LockStoreReachable => true,
            ConditionType::Active | ConditionType::Ready => inactive,
            _ => false,
        });
        let history = view.group.history.entries().to_vec();
        return LeaderGroupStatus {
            history,
            conditions: merged(findings, generation, &old.conditions, at),
            ..old
        };
    }
    LeaderGroupStatus {
        observed_generation: generation,
        active: active(view, &old, at),
        token: old.token,
        key: Some(record.key.to_string()),
        declaration: old.declaration.clone(),
        eligible,
        replicas,
        eligible_summary: format!("{eligible}/{replicas}"),
        switchover: switchover(view, &old),
        history: view.group.history.entries().to_vec(),
        conditions: conditions(findings, generation, &old.conditions, at),
    }
}

/// The patch that turns the status into `wanted`; `None` if it reads so already. Declaration and token are not part of
/// it: they are written by compare-and-set only.
pub(super) fn patch(old: Option<&LeaderGroupStatus>, wanted: &LeaderGroupStatus) -> Option<Value> {
    (old != Some(wanted)).then(|| {
        json!({
            "observedGeneration": wanted.observed_generation,
            "active": wanted.active,
            "key": wanted.key,
            "eligible": wanted.eligible,
            "replicas": wanted.replicas,
            "eligibleSummary": wanted.eligible_summary,
            "switchover": wanted.switchover,
            "history": wanted.history,
            "conditions": wanted.conditions,
        })
    })
}

/// Whether the status differs from the old one only in what does not concern the active pod: how many pods could take
/// over.
pub(super) fn is_minor(old: Option<&LeaderGroupStatus>, wanted: &LeaderGroupStatus) -> bool {
    old.is_some_and(|old| old != wanted && Gist::of(old) == Gist::of(wanted))
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

/// What a user should mend although the group is Ready: without what the old status says already.
pub(super) fn warnings<'a>(
    old: Option<&'a LeaderGroupStatus>,
    wanted: &'a LeaderGroupStatus,
) -> impl Iterator<Item = &'a Condition> {
    let of_probes = [Reason::ProbeUnusable, Reason::TcpOnly].map(|reason| (ConditionType::Probed, reason));
    let complaints = Reason::COMPLAINTS.map(|reason| (ConditionType::Accepted, reason));
    of_probes.into_iter().chain(complaints).filter_map(move |(kind, reason)| {
        let reason = reason.to_string();
        let find = |status| condition(status, kind).filter(|found| found.reason == reason);
        find(wanted).filter(|_| old.and_then(find).is_none())
    })
}

fn readiness(status: &LeaderGroupStatus) -> Option<&Condition> {
    condition(status, ConditionType::Ready)
}

fn condition(status: &LeaderGroupStatus, kind: ConditionType) -> Option<&Condition> {
    let kind = kind.to_string();
    status.conditions.iter().find(|condition| condition.type_ == kind)
}

/// The holder with the active label on it, since the time it got it, or since `at` if that is not known.
fn active(view: View<'_>, old: &LeaderGroupStatus, at: Timestamp) -> Option<ActivePod> {
    let member = labelled_holder(view)?;
    let known =
        old.active.as_ref().filter(|active| active.uid == member.pod.uid).map(|active| active.since.clone());
    let recorded =
        view.group.history.entries().first().filter(|entry| entry.to.as_ref() == Some(&member.pod.name));
    let since = known.or_else(|| recorded.map(|entry| entry.time.clone())).unwrap_or(Time(at));
    Some(ActivePod {
        pod: member.pod.name.clone(),
        uid: member.pod.uid.clone(),
        node: member.node.clone(),
        since,
    })
}

/// What became of the last request for a switchover. If somebody has removed that, it is reported again: a replica that
/// starts later would carry the request out again.
fn switchover(view: View<'_>, old: &LeaderGroupStatus) -> Option<SwitchoverStatus> {
    let election = view.group.election();
    let last = old.switchover.clone().or_else(|| view.group.record().answered_switchover().cloned());
    let Some(request) = view.group.record().requested_switchover() else { return last };
    let answer = |result, message| Some(SwitchoverStatus { request: request.id.clone(), result, message });
    if let Some((_, why)) = election.refused_switchover().filter(|(refused, _)| *refused == request.id) {
        return answer(SwitchoverResult::Refused, why.to_string());
    }
    let ended = election.declared().switchover.as_ref() == Some(&request.id) && !election.is_changing();
    let Some(holder) = labelled_holder(view).filter(|_| ended) else { return last };
    let (name, token) = (&holder.pod.name, election.declared().token);
    let entry = view.group.history.entries().first().filter(|entry| entry.token == token);
    let stayed = entry.is_some_and(|entry| entry.from == entry.to);
    if stayed || request.to.as_ref().is_some_and(|to| to != name) {
        // The cause may be over by now, so what was said of the request once stays.
        let said =
            |last: &SwitchoverStatus| last.request == request.id && last.result == SwitchoverResult::Refused;
        let message = format!(
            "the change was begun and could not be completed; {name} is active with token {token}{}",
            refusals_of_change(election, request.to.as_deref())
        );
        return last.filter(said).or_else(|| answer(SwitchoverResult::Refused, message));
    }
    let took = entry.map(|entry| format!("; the change took {}", entry.duration)).unwrap_or_default();
    answer(SwitchoverResult::Done, format!("{name} is active with token {token}{took}"))
}

/// Whether a request for a switchover was refused, and the old status does not say so.
pub(super) fn refused_switchover<'a>(
    old: Option<&LeaderGroupStatus>,
    wanted: &'a LeaderGroupStatus,
) -> Option<&'a SwitchoverStatus> {
    let is_new = |refused: &&SwitchoverStatus| old.and_then(|old| old.switchover.as_ref()) != Some(*refused);
    wanted.switchover.as_ref().filter(|last| last.result == SwitchoverResult::Refused).filter(is_new)
}

/// The patch that reports that a group cannot be decoded; `None` if its status says so already.
pub(super) fn of_undecodable(unreadable: &Unreadable, at: Timestamp) -> Option<Value> {
    use ConditionType as C;
    let generation = unreadable.metadata.generation.unwrap_or_default();
    let findings = [(C::Accepted, false), (C::Ready, false), (C::Stalled, true)]
        .map(|(kind, status)| finding(kind, status, Reason::InvalidSpec, unreadable.problem.clone()));
    let before = unreadable.conditions();
    let all = merged(findings.into(), generation, &before, at);
    (all != before).then(|| json!({ "observedGeneration": generation, "conditions": all }))
}

/// The old conditions with these findings in their place.
fn merged(findings: Vec<Finding>, generation: i64, old: &[Condition], at: Timestamp) -> Vec<Condition> {
    let found = conditions(findings, generation, old, at);
    let replaced = |condition: &Condition| {
        found.iter().find(|found| found.type_ == condition.type_).unwrap_or(condition).clone()
    };
    let added = found.iter().filter(|found| old.iter().all(|old| old.type_ != found.type_));
    old.iter().map(replaced).chain(added.cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A status with an active pod, and so many that could take over.
    fn with(eligible: u32) -> LeaderGroupStatus {
        let others = finding(ConditionType::Redundant, eligible > 1, Reason::AsExpected, "");
        let ready = finding(ConditionType::Ready, true, Reason::Active, "");
        let conditions = conditions(vec![ready, others], 1, &[], Timestamp::now());
        LeaderGroupStatus { eligible, observed_generation: 1, conditions, ..LeaderGroupStatus::default() }
    }

    #[test]
    fn only_a_status_that_reads_otherwise_is_written_and_never_the_declaration() {
        let old = with(2);
        assert_eq!(patch(Some(&old), &old), None);
        for before in [None, Some(&with(1))] {
            let written = patch(before, &old).expect("it differs");
            assert_eq!(written["eligible"], 2);
            assert!(written.get("token").is_none() && written.get("declaration").is_none(), "{written}");
        }
    }

    #[test]
    fn what_could_take_over_is_minor_and_the_active_pod_is_not() {
        let old = with(2);
        assert!(is_minor(Some(&old), &with(1)), "also if that changes whether there is any other");
        assert!(!is_minor(Some(&old), &old) && !is_minor(None, &old));
        let mut ready = with(1);
        ready.conditions[0].status = "False".to_owned();
        let generation = LeaderGroupStatus { observed_generation: 2, ..with(1) };
        for major in [ready, generation] {
            assert!(!is_minor(Some(&old), &major), "{major:?}");
        }
    }
}
