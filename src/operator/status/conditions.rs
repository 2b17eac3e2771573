//! The conditions of a group's status: what is reported as true or false, and with which message.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::refused::{barred, refusals};
use crate::{
    api::{ConditionType, Former, HumanDuration, LeaderGroupSpec, Reason, Role, Verdict},
    election::{self, Member, Phase},
    operator::{
        group::Group,
        index::{IndexedGroup, coverage::ProbeCoverage, outage::Hindrance},
        trouble::Trouble,
    },
    ownership::Owner,
    routing::RoleLabelUse,
};

/// A group as it is seen, and as it is run.
#[derive(Clone, Copy)]
pub(in crate::operator) struct View<'a> {
    pub(in crate::operator) seen: &'a IndexedGroup,
    pub(in crate::operator) group: &'a Group,
}

/// One condition without its time of transition.
pub(in crate::operator) struct Finding {
    pub(in crate::operator) kind: ConditionType,
    status: bool,
    reason: Reason,
    message: String,
}

pub(in crate::operator) fn finding(
    kind: ConditionType,
    status: bool,
    reason: Reason,
    message: impl Into<String>,
) -> Finding {
    Finding { kind, status, reason, message: message.into() }
}

/// The holder, if it carries the active label.
pub(in crate::operator) fn labelled_holder(view: View<'_>) -> Option<&Member> {
    view.group.election().member(view.group.holder()?).filter(|member| member.role == Role::Active)
}

/// How many pods a group has.
#[derive(Clone, Copy)]
pub(in crate::operator) struct Counts {
    pub(in crate::operator) replicas: u32,
    /// Those that could be active.
    pub(in crate::operator) eligible: u32,
    /// Of these, those that could take over.
    others: u32,
}

impl Counts {
    /// The pods that could be active now, or at least so many of them, if that is given: then the owner has not heard
    /// all pods yet.
    pub(in crate::operator) fn of(view: View, at_least: Option<u32>) -> Self {
        let election = view.group.election();
        let members = &election.world().members;
        let count = |pods| u32::try_from(pods).unwrap_or(u32::MAX);
        let replicas = count(members.len());
        let eligible = count(members.iter().filter(|member| election.is_available(member)).count());
        let eligible = at_least.map_or(eligible, |least| eligible.max(least.min(replicas)));
        // A holder that is not known to be well is not among the eligible pods. Without a holder, one of them becomes
        // active.
        let is_among_them = labelled_holder(view).is_none_or(|holder| match at_least {
            Some(_) => holder.verdict.against().is_none(),
            None => election.is_available(holder),
        });
        let others = eligible.saturating_sub(u32::from(is_among_them)).min(replicas.saturating_sub(1));
        Self { replicas, eligible, others }
    }
}

/// The conditions of a group.
pub(in crate::operator) fn findings(
    view: View,
    Counts { replicas, eligible, others }: Counts,
    hindrance: Option<&Hindrance>,
) -> Vec<Finding> {
    use ConditionType as C;
    let accepted = accepted(view);
    let active = activity(view, eligible, replicas, hindrance);
    let routed = routed(view);
    let store = match (hindrance, &view.group.trouble) {
        (Some(Hindrance::Lock(outage)), _) => finding(
            C::LockStoreReachable,
            false,
            Reason::LockStoreUnavailable,
            format!("{outage}; labels stay as they are"),
        ),
        (_, Some(Trouble::Lock(text))) => {
            finding(C::LockStoreReachable, false, Reason::LockStoreUnavailable, text.clone())
        }
        _ => finding(C::LockStoreReachable, true, Reason::AsExpected, "PostgreSQL is reachable"),
    };
    let election = view.group.election();
    let refused = refusals(election);
    let redundant = if others > 0 {
        let plural = if others == 1 { "pod" } else { "pods" };
        finding(C::Redundant, true, Reason::AsExpected, format!("{others} {plural} could take over{refused}"))
    } else {
        let cause = match hindered(view) {
            Some(hindered) => format!(": {hindered}"),
            None if barred(election).is_some_and(|barred| barred.pods + 1 >= replicas) => String::new(),
            None => "; check the pods that are not ready, or add replicas".to_owned(),
        };
        let message = format!("no other pod could take over now{cause}{refused}");
        finding(C::Redundant, false, Reason::NoStandby, message)
    };
    let ready = match [&accepted, &active, &routed].into_iter().find(|finding| !finding.status) {
        Some(first) => finding(C::Ready, false, first.reason, first.message.clone()),
        None => finding(C::Ready, true, active.reason, active.message.clone()),
    };
    let stalled = if accepted.status {
        finding(C::Stalled, false, Reason::AsExpected, "no action is needed")
    } else {
        finding(C::Stalled, true, accepted.reason, accepted.message.clone())
    };
    vec![accepted, active, redundant, routed, probed(view), store, ready, stalled]
}

fn probed(view: View) -> Finding {
    let found = view.seen.coverage();
    let reason = match found {
        ProbeCoverage::Full => Reason::AsExpected,
        ProbeCoverage::TcpOnly => Reason::TcpOnly,
        ProbeCoverage::NoProbe => Reason::NoProbe,
        ProbeCoverage::Unusable { .. } => Reason::ProbeUnusable,
        ProbeCoverage::Hindered(_) => Reason::CannotProbe,
    };
    finding(ConditionType::Probed, found.is_probed(), reason, found.to_string())
}

/// What keeps the operator itself from probing the pods.
fn hindered(view: View) -> Option<ProbeCoverage> {
    Some(view.seen.coverage()).filter(|found| matches!(found, ProbeCoverage::Hindered(_)))
}

fn accepted(view: View) -> Finding {
    use ConditionType::Accepted;
    if let Some(invalid) = view.seen.invalid() {
        return finding(Accepted, false, Reason::InvalidSpec, invalid);
    }
    let owner = view.group.ownership.owner();
    if let Owner::Foreign(other) = &owner {
        let message = format!(
            "the lock key {} is in use by {other}; delete that group, or create this one again with another spec.lock.key",
            view.group.record().key
        );
        return finding(Accepted, false, Reason::KeyInUse, message);
    }
    if let Owner::Refused(reason) = owner {
        return finding(Accepted, false, Reason::KeyNotAllowed, reason.to_string());
    }
    if let Some(message) = view.seen.contested() {
        return finding(Accepted, false, Reason::SelectedByOtherGroup, message);
    }
    let label = &view.group.record().reference.marks.label;
    match view.seen.role_label_use() {
        Some(RoleLabelUse { workload, selects: true }) => {
            let message = format!(
                "{workload} selects its pods by the label {label}, so a pod whose role changes is replaced at once; take \
                 the label out of its selector and its template. No pod of this group is promoted"
            );
            finding(Accepted, false, Reason::RoleLabelInOwnerSelector, message)
        }
        Some(RoleLabelUse { workload, selects: false }) => {
            let message = format!(
                "the spec is valid, but the pod template of {workload} sets the label {label}: each new pod has \
                 this role until the operator corrects it. Take the label out of the template"
            );
            finding(Accepted, true, Reason::RoleLabelInTemplate, message)
        }
        None => valid(view),
    }
}

/// Nothing is wrong with the spec, but perhaps with what follows from it.
fn valid(view: View) -> Finding {
    use ConditionType::Accepted;
    if let Some(refused) = view.group.election().deletion_refused() {
        let message = format!(
            "the spec is valid, but election.onDemote: Delete has no effect. Set podDeletion.enabled=true in the \
             operator's chart, unless a policy of the cluster is meant to refuse it: {refused}"
        );
        return finding(Accepted, true, Reason::DeletionRefused, message);
    }
    let mut failed = view.group.election().failed_hooks();
    if let Some((member, why)) = failed.next() {
        let more = match failed.count() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let message = format!(
            "the spec is valid, but {}{more} could not be told its role by its hook, which is sent again: \
             {why}",
            member.pod.name
        );
        return finding(Accepted, true, Reason::HookFailed, message);
    }
    let advice = view.group.record().object.spec.advice();
    let message = advice
        .map_or_else(|| "the spec is valid".to_owned(), |advice| format!("the spec is valid, but {advice}"));
    finding(Accepted, true, Reason::AsExpected, message)
}

fn activity(view: View, eligible: u32, replicas: u32, hindrance: Option<&Hindrance>) -> Finding {
    use ConditionType::Active;
    if let Some(member) = labelled_holder(view) {
        return activity_of(view, member, eligible);
    }
    if view.group.record().object.spec.paused {
        return finding(Active, false, Reason::Paused, "no pod is active; spec.paused prevents an election");
    }
    if let Some(Hindrance::Pods(problem)) = hindrance {
        let message = format!("the operator cannot watch the pods: {problem}");
        return finding(Active, false, Reason::WatchFailed, message);
    }
    if let Some(message) = view.seen.contested().filter(|_| eligible == 0) {
        return finding(Active, false, Reason::SelectedByOtherGroup, message);
    }
    if replicas == 0 {
        let label = &view.group.record().reference.marks.label;
        let message = format!(
            "spec.selector matches no pod in this namespace; compare it with the labels of the pods. If no pod is \
             created, check that the pod template does not set the label {label}"
        );
        return finding(Active, false, Reason::NoPods, message);
    }
    if let Some(Hindrance::Lock(outage)) = hindrance {
        return finding(Active, false, Reason::LockStoreUnavailable, outage.clone());
    }
    // The holder is not labelled.
    let mut labelled = view.group.election().strays("").map(|member| member.pod.name.as_str());
    let kept = labelled.next().map_or_else(String::new, |name| {
        format!("\"{name}\" still has the active label; no other pod becomes active until it is removed: ")
    });
    // While a pod cannot lose the label, it does not matter which others are well.
    let is_kept = !kept.is_empty() && matches!(view.group.trouble, Some(Trouble::Refused(_)));
    if eligible == 0 && !is_kept {
        return without_eligible(view, replicas);
    }
    match &view.group.trouble {
        Some(Trouble::Refused(text)) => finding(Active, false, Reason::WriteRefused, format!("{kept}{text}")),
        Some(Trouble::Unreachable(text)) => finding(Active, false, Reason::Changing, format!("{kept}{text}")),
        Some(Trouble::Lock(text)) => finding(Active, false, Reason::LockStoreUnavailable, text.clone()),
        None => finding(Active, false, Reason::Changing, change_under_way(view.group.election())),
    }
}

/// The condition while no pod could be active. A pod that is well, but is refused the role, needs another remedy than
/// one that is not well.
fn without_eligible(view: View, replicas: u32) -> Finding {
    let barred = barred(view.group.election());
    let check = |whose| format!("; {}", what_to_check(&view.group.record().object.spec, whose));
    let advice = match &barred {
        Some(barred) if barred.pods >= replicas => String::new(),
        Some(_) => check("the others"),
        None => check("they"),
    };
    let (cause, advice) =
        hindered(view).map_or((String::new(), advice), |it| (format!(": {it}"), String::new()));
    let (reason, words) =
        barred.map_or((Reason::NoEligiblePod, String::new()), |barred| (barred.reason, barred.words));
    let message = format!("none of {replicas} pods could be active{cause}{words}{advice}");
    finding(ConditionType::Active, false, reason, message)
}

/// What makes these pods eligible.
fn what_to_check(spec: &LeaderGroupSpec, pods: &str) -> String {
    match &spec.agent {
        None => format!("check that {pods} are ready and answer their probe"),
        Some(agent) => format!(
            "check that {pods} are ready, and that leadergroup-agent runs in each of them and answers on port {}: its log says \
             what it lacks",
            agent.port
        ),
    }
}

fn change_under_way(election: &election::Group) -> String {
    let mut words = "a change of holder is under way".to_owned();
    if let Some(limit) = election.waits_for_program() {
        let limit = HumanDuration(limit);
        let whose = match election.declared().former() {
            Former::Anyone => "of an earlier LeaderGroup of this name",
            Former::One(_) | Former::Over => "of the former holder",
        };
        words += &format!("; it waits until a program {whose} is certainly over, for at most {limit}");
    }
    match election.waits_for_hooks() {
        Some(Role::Active) => words += "; it waits for the answer to spec.hooks.promote",
        Some(_) => words += "; it waits for the answers to spec.hooks.demote",
        None => {}
    }
    words
}

/// The condition while this pod is labelled active.
fn activity_of(view: View, holder: &Member, eligible: u32) -> Finding {
    use ConditionType::Active;
    let (name, token) = (&holder.pod.name, view.group.election().declared().token);
    match holder.verdict {
        Verdict::Failing(reason) => {
            let others = if eligible == 0 { ", and no other pod can take over" } else { "" };
            finding(Active, false, reason, format!("{name} is active but failing{others}"))
        }
        Verdict::Silent => finding(Active, false, Reason::Silent, format!("{name} is active but silent")),
        Verdict::Ended(reason) => finding(Active, false, reason, format!("{name} is active but ending")),
        _ if view.group.record().object.spec.paused => finding(
            Active,
            true,
            Reason::Paused,
            format!("{name} is active with token {token}; elections are paused"),
        ),
        _ => finding(Active, true, Reason::Active, format!("{name} is active with token {token}")),
    }
}

fn routed(view: View) -> Finding {
    use ConditionType::Routed;
    match &view.group.trouble {
        Some(Trouble::Refused(text)) => return finding(Routed, false, Reason::WriteRefused, text.clone()),
        Some(Trouble::Unreachable(text)) => return finding(Routed, false, Reason::Changing, text.clone()),
        _ => {}
    }
    let endpoints = &view.group.publishing.report;
    if let Some(problem) = &endpoints.problem {
        return finding(Routed, false, problem.reason, problem.message.clone());
    }
    let election = view.group.election();
    let is_stable = match election.phase() {
        Phase::Stable | Phase::Observing | Phase::Verifying { .. } => true,
        // The step that failed may have been a read.
        Phase::BackingOff { .. } => election.keeps_its_label(),
        // Before the first step of a change no label is touched. A program may take minutes to end.
        Phase::Trying(_) | Phase::Stopping { .. } => {
            election.holder().is_none() || election.keeps_its_label()
        }
        _ => false,
    };
    let strays =
        view.group.election().world().members.iter().filter(|member| member.role == Role::Active).count() > 1;
    if is_stable && !strays {
        let mut message = "the pods' labels match the declaration".to_owned();
        if !endpoints.services.is_empty() {
            message +=
                &format!(", and the operator writes the endpoints of {}", endpoints.services.join(", "));
        }
        finding(Routed, true, Reason::AsExpected, message)
    } else {
        finding(Routed, false, Reason::Changing, "labels are being changed")
    }
}

/// The conditions with their times of transition: those that stay as they are have that of `old`, and the others `at`.
pub(in crate::operator) fn conditions(
    findings: Vec<Finding>,
    generation: i64,
    old: &[Condition],
    at: Timestamp,
) -> Vec<Condition> {
    let old: BTreeMap<_, _> = old.iter().map(|condition| (condition.type_.as_str(), condition)).collect();
    let condition = |finding: Finding| {
        let type_ = finding.kind.to_string();
        let status = if finding.status { "True" } else { "False" };
        let same = old.get(type_.as_str()).filter(|old| old.status == status);
        let since = same.map_or_else(|| Time(at), |old| old.last_transition_time.clone());
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
mod tests;
