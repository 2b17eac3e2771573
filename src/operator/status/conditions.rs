//! The conditions of a group's status: what is reported as true or false, and with which message.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

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

/// The conditions of a group, of which `eligible` of `replicas` pods could be active.
pub(in crate::operator) fn findings(
    view: View,
    eligible: u32,
    replicas: u32,
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
    // A holder that is unwell is not among the eligible pods.
    let unwell = labelled_holder(view).is_some_and(|member| member.verdict.against().is_some());
    let others = if unwell { eligible } else { eligible.saturating_sub(1) };
    let refused = refusal(view);
    let redundant = if others > 0 {
        let plural = if others == 1 { "pod" } else { "pods" };
        finding(C::Redundant, true, Reason::AsExpected, format!("{others} {plural} could take over{refused}"))
    } else {
        let cause = match hindered(view) {
            Some(hindered) => format!(": {hindered}"),
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
    if eligible == 0 {
        // A pod that is well, but must not get the label, needs another remedy than one that is not well.
        let is_refused = view.group.election().refused().any(|(member, refused)| {
            member.verdict == Verdict::Eligible && refused.refusal.reason == Reason::WriteRefused
        });
        if is_refused {
            let message = format!("none of {replicas} pods could be active{}", refusal(view));
            return finding(Active, false, Reason::WriteRefused, message);
        }
        let cause = match hindered(view) {
            Some(hindered) => format!(": {hindered}"),
            None => format!("; {}", what_to_check(&view.group.record().object.spec)),
        };
        let message = format!("none of {replicas} pods could be active{cause}");
        return finding(Active, false, Reason::NoEligiblePod, message);
    }
    // The holder is not labelled.
    let mut labelled = view.group.election().strays("").map(|member| member.pod.name.as_str());
    let kept = labelled.next().map_or_else(String::new, |name| {
        format!("{name} still has the active label; no other pod becomes active until it is removed: ")
    });
    match &view.group.trouble {
        Some(Trouble::Refused(text)) => finding(Active, false, Reason::WriteRefused, format!("{kept}{text}")),
        Some(Trouble::Unreachable(text)) => finding(Active, false, Reason::Changing, format!("{kept}{text}")),
        Some(Trouble::Lock(text)) => finding(Active, false, Reason::LockStoreUnavailable, text.clone()),
        None => finding(Active, false, Reason::Changing, change_under_way(view.group.election())),
    }
}

/// What makes a pod eligible.
fn what_to_check(spec: &LeaderGroupSpec) -> String {
    match &spec.agent {
        None => "check that they are ready and answer their probe".to_owned(),
        Some(agent) => format!(
            "check that they are ready, and that leadergroup-agent runs in each of them and answers on port {}: its log says \
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

/// The pods that cannot get or lose a role, and why, for the end of a message.
pub(super) fn refusal(view: View) -> String {
    let mut refused = view.group.election().refused();
    let Some((member, first)) = refused.next() else { return String::new() };
    let more = match refused.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let what =
        if member.role == Role::Active { "cannot lose the active label" } else { "cannot become active" };
    format!("; {}{more} {what}: {}", member.pod.name, first.refusal.message)
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
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::{
        api::{Boot, Declaration, LeaderGroup, PodRef, Promise, Run},
        election::{AgentPolicy, Effect, Event, Outcome, Row, SwitchoverRequest, Ticket, World},
        operator::object::{GroupName, record::Record},
    };

    #[test]
    fn if_no_pod_could_be_active_the_message_names_what_makes_it_so() {
        let words = |agent: serde_json::Value| {
            let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "agent": agent });
            what_to_check(&serde_json::from_value(spec).expect("a spec"))
        };
        assert!(words(json!(null)).contains("answer their probe"));
        let with_agents = words(json!({ "port": 9999 }));
        assert!(with_agents.contains("leadergroup-agent") && with_agents.contains("9999"), "{with_agents}");
    }

    fn pod(name: &str) -> PodRef {
        PodRef { name: name.to_owned(), uid: format!("uid-{name}") }
    }

    /// A replica that owns a group: web-0 holds its fifth term, and web-1 is a standby.
    struct Stage {
        seen: IndexedGroup,
        group: Group,
        world: World,
        asked: Vec<(Ticket, Effect)>,
    }

    impl Stage {
        /// web-0 has this role. The world of the group is changed so.
        fn new(role: Role, change: impl FnOnce(&mut World)) -> Self {
            let object = json!({ "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
                "spec": { "selector": { "matchLabels": { "app": "web" } } } });
            let object: LeaderGroup = serde_json::from_value(object).expect("a group");
            let name = GroupName { namespace: "shop".into(), name: "web".into() };
            let record = || Record::first(object.clone(), name.clone(), "c1").expect("it has a name");
            let (holder, grant) = (Some(pod("web-0")), Uuid::from_u128(7));
            let declared = Declaration {
                token: 5,
                grant: Some(grant.to_string()),
                holder: holder.clone(),
                ..Declaration::default()
            };
            let row = Row { token: 5, grant: Some(grant), holder, confirmed: true, ..Row::default() };
            let members = vec![Member { role, ..Member::standby("web-0", 5) }, Member::standby("web-1", 5)];
            let mut world = World { members, declared, ..World::default() };
            change(&mut world);
            let (mut group, seed) = (Group::new(&Arc::new(record())), Uuid::from_u128(1_000));
            let asked = group.step(Event::Owned { seed, row: None, world: world.clone() }, NOW);
            let mut stage = Self { seen: IndexedGroup::new(record(), NOW), group, world, asked };
            let declared = Some(stage.world.declared.clone());
            stage.answer(Outcome::Read { row: Some(row), declared });
            stage
        }

        fn answer(&mut self, outcome: Outcome) {
            let ticket = self.asked[0].0;
            self.asked = self.group.step(Event::Outcome(ticket, outcome, self.world.clone()), NOW);
        }

        fn phase(&self) -> &Phase {
            self.group.election().phase()
        }

        /// Whether these conditions are True.
        fn are_true(&self, kinds: &[ConditionType]) -> bool {
            let all = findings(View { seen: &self.seen, group: &self.group }, 2, 2, None);
            let is_true = |kind| all.iter().any(|it| it.kind == kind && it.status);
            kinds.iter().all(|kind| is_true(*kind))
        }
    }

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn the_time_of_a_condition_is_that_of_its_last_transition() {
        let ready =
            |status, message: &str| vec![finding(ConditionType::Ready, status, Reason::Active, message)];
        let mut old = conditions(ready(true, "web-0 is active"), 1, &[], Timestamp::now());
        let long_ago = Time(Timestamp::UNIX_EPOCH);
        old[0].last_transition_time = long_ago.clone();
        let same = &conditions(ready(true, "web-1 is active"), 2, &old, Timestamp::now())[0];
        assert_eq!((&same.last_transition_time, same.message.as_str()), (&long_ago, "web-1 is active"));
        assert_eq!(same.observed_generation, Some(2));
        let other = &conditions(ready(false, "no pod is active"), 2, &old, Timestamp::now())[0];
        assert!(other.last_transition_time > long_ago, "{other:?}");
    }

    #[test]
    fn a_group_is_routed_while_its_labels_stand_whatever_is_looked_at_again() {
        for (role, stands) in [(Role::Active, true), (Role::Standby, false)] {
            // Paused, so that a lost label is not put back.
            let mut stage = Stage::new(role, |world| world.policy.paused = true);
            stage.asked = stage.group.step(Event::Doubt, NOW);
            stage.answer(Outcome::Failed);
            assert!(matches!(stage.phase(), Phase::BackingOff { .. }), "{:?}", stage.phase());
            assert_eq!(stage.are_true(&[ConditionType::Routed]), stands, "{role:?}");
        }
    }

    #[test]
    fn a_planned_change_changes_no_label_before_the_former_program_has_ended() {
        let boot = |name: &str| Boot::new([name.as_bytes()[4]; 32]);
        let lease = Duration::from_secs(10);
        let mut stage = Stage::new(Role::Active, |world| {
            world.policy.agent = Some(AgentPolicy { lease, stop_timeout: Duration::from_mins(5) });
            world.declared.run = Some(Run { cleared: true, ..Run::uncleared(5, boot("web-0"), lease) });
            for (member, idle) in world.members.iter_mut().zip([false, true]) {
                let boot = boot(&member.pod.name);
                member.agent = Some(Promise { boot, floor: 5, idle }.into());
            }
            let to = Some("web-1".to_owned());
            world.switchover = Some(SwitchoverRequest { id: "one".to_owned(), to });
        });
        let stands = [ConditionType::Active, ConditionType::Routed, ConditionType::Ready];
        assert!(matches!(stage.phase(), Phase::Trying(_)), "{:?}", stage.phase());
        assert!(stage.are_true(&stands));
        for _ in 0..3 {
            if let Some((_, Effect::Try { .. })) = stage.asked.first() {
                stage.answer(Outcome::Accepted);
            }
        }
        assert!(matches!(stage.phase(), Phase::Stopping { .. }), "{:?}", stage.phase());
        assert!(stage.are_true(&stands), "the former pod serves until then");
        // Somebody takes its label off.
        stage.world.members[0].role = Role::Standby;
        stage.group.step(Event::World(stage.world.clone()), NOW);
        assert!(!stage.are_true(&[ConditionType::Routed]), "{:?}", stage.phase());
    }
}
