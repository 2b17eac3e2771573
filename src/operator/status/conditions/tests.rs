use std::{sync::Arc, time::Duration};

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::{
    api::{Boot, Declaration, LeaderGroup, OnHookFailure, PodRef, Promise, Run},
    election::{AgentPolicy, Effect, Event, HookPolicy, Outcome, Row, SwitchoverRequest, Ticket, World},
    operator::{
        object::{GroupName, record::Record},
        status::{causes::Causes, refused::refusals_of_change},
    },
};

#[test]
fn if_no_pod_could_be_active_the_message_names_what_makes_it_so() {
    let words = |agent: serde_json::Value| {
        let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "agent": agent });
        what_to_check(&serde_json::from_value(spec).expect("a spec"), "they")
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

    /// Carries out what the group asks for first, in the world and in the lock.
    fn carry_out(&mut self) {
        let outcome = match self.asked[0].1.clone() {
            Effect::Try { .. } => Outcome::Accepted,
            Effect::Grant(request) => Outcome::Granted { token: request.expected + 1 },
            Effect::Declare { next, .. } => {
                self.world.declared = next;
                Outcome::Declared
            }
            Effect::Strip { pods, .. } => {
                for at in &pods {
                    self.label(&at.pod, Role::Standby);
                }
                Outcome::Stripped
            }
            Effect::Promote { pod, .. } => {
                self.label(&pod, Role::Active);
                Outcome::Promoted
            }
            Effect::Tell { .. } => Outcome::Told(Vec::new()),
            other => panic!("not expected: {other:?}"),
        };
        self.answer(outcome);
    }

    fn label(&mut self, pod: &PodRef, role: Role) {
        if let Some(member) = self.world.members.iter_mut().find(|member| member.pod == *pod) {
            member.role = role;
        }
    }

    fn phase(&self) -> &Phase {
        self.group.election().phase()
    }

    fn view(&self) -> View<'_> {
        View { seen: &self.seen, group: &self.group }
    }

    fn findings(&self) -> Vec<Finding> {
        findings(self.view(), Counts::of(self.view(), None), None)
    }

    /// Whether these conditions are True.
    fn are_true(&self, kinds: &[ConditionType]) -> bool {
        let all = self.findings();
        let is_true = |kind| all.iter().any(|it| it.kind == kind && it.status);
        kinds.iter().all(|kind| is_true(*kind))
    }
}

const NOW: Duration = Duration::from_secs(100);

#[test]
fn the_time_of_a_condition_is_that_of_its_last_transition() {
    let ready = |status, message: &str| vec![finding(ConditionType::Ready, status, Reason::Active, message)];
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

/// The declared holder is gone, and each of the two pods that are left has refused the role.
fn refused(hooks: HookPolicy) -> Stage {
    let mut stage = Stage::new(Role::None, |world| {
        world.members = ["web-1", "web-2"].map(|name| Member::standby(name, 5)).into();
        world.policy.hooks = hooks;
    });
    let mut refusals = 0;
    while refusals < 2 {
        let outcome = match stage.asked[0].1.clone() {
            Effect::Tell { role: Role::Active, pods, .. } => {
                refusals += 1;
                Outcome::Told(pods.into_iter().map(|pod| (pod, "HTTP 503".to_owned())).collect())
            }
            Effect::Promote { pod, .. } => {
                refusals += 1;
                Outcome::Refused(format!("{} is forbidden", pod.name))
            }
            Effect::Verify(pod) => Outcome::Verified((pod.name == "web-0").then_some(Reason::PodDeleted)),
            _ => {
                stage.carry_out();
                continue;
            }
        };
        stage.answer(outcome);
    }
    stage
}

fn active(stage: &Stage) -> (Reason, String) {
    let all = stage.findings();
    let active = all.into_iter().find(|it| it.kind == ConditionType::Active).expect("it is always there");
    assert!(!active.status);
    (active.reason, active.message)
}

#[test]
fn if_all_pods_refuse_the_role_the_condition_names_the_refusal_and_not_their_health() {
    let aborts = HookPolicy { promote: Some(OnHookFailure::Abort), demote: None };
    for (hooks, reason, words) in [
        (HookPolicy::default(), Reason::WriteRefused, "web-1 is forbidden"),
        (aborts, Reason::HookFailed, "HTTP 503"),
    ] {
        let stage = refused(hooks);
        let expected =
            format!("none of 2 pods could be active; \"web-1\" (and 1 more) cannot become active: {words}");
        assert_eq!(active(&stage), (reason, expected));
        let redundant = stage.findings().into_iter().find(|it| it.kind == ConditionType::Redundant);
        assert!(redundant.is_some_and(|it| !it.message.contains("not ready")), "all are ready");
    }
}

#[test]
fn the_refusal_of_a_pod_that_is_not_well_is_not_the_cause() {
    let mut stage = refused(HookPolicy::default());
    stage.world.members[0].verdict = Verdict::Failing(Reason::PodNotReady);
    stage.group.step(Event::World(stage.world.clone()), NOW);
    let (reason, message) = active(&stage);
    assert_eq!(reason, Reason::WriteRefused);
    let expected =
        "; \"web-2\" cannot become active: web-2 is forbidden; check that the others are ready and";
    assert!(message.contains(expected), "{message}");
    stage.world.members[1].verdict = Verdict::Failing(Reason::PodNotReady);
    stage.group.step(Event::World(stage.world.clone()), NOW);
    let (reason, message) = active(&stage);
    assert_eq!(reason, Reason::NoEligiblePod);
    assert!(message.ends_with("answer their probe"), "{message}");
}

#[test]
fn a_switchover_that_the_hook_of_the_former_pod_ends_names_that_pod() {
    let mut stage = Stage::new(Role::Active, |world| {
        world.policy.hooks = HookPolicy { promote: None, demote: Some(OnHookFailure::Abort) };
        world.switchover = Some(SwitchoverRequest { id: "one".to_owned(), to: Some("web-1".to_owned()) });
    });
    while !matches!(stage.asked.first(), None | Some((_, Effect::Confirm { .. }))) {
        match &stage.asked[0].1 {
            Effect::Tell { .. } => stage.answer(Outcome::Told(vec![(pod("web-0"), "HTTP 503".to_owned())])),
            _ => stage.carry_out(),
        }
    }
    assert_eq!(stage.world.members[0].role, Role::Active, "it keeps the role");
    let words = refusals_of_change(stage.group.election(), Some("web-1"));
    assert_eq!(words, "; \"web-0\" cannot lose the active label: HTTP 503");
    // A failover asks nobody.
    stage.world.members[0].role = Role::Standby;
    stage.group.step(Event::World(stage.world.clone()), NOW);
    assert_eq!(refusals(stage.group.election()), "", "it has lost the label");
}

#[test]
fn a_holder_that_has_not_answered_yet_takes_no_place_of_the_pods_that_could_take_over() {
    let redundant = |verdict, at_least| {
        let stage = Stage::new(Role::Active, |world| world.members[0].verdict = verdict);
        let all = findings(stage.view(), Counts::of(stage.view(), at_least), None);
        let redundant = all.into_iter().find(|it| it.kind == ConditionType::Redundant);
        redundant.expect("it is always there").message
    };
    for (verdict, at_least) in [
        (Verdict::Eligible, None),
        (Verdict::Unknown, None),
        (Verdict::Failing(Reason::PodNotReady), None),
        // Its new owner has not heard it yet.
        (Verdict::Unknown, Some(2)),
        (Verdict::Failing(Reason::PodNotReady), Some(2)),
    ] {
        assert_eq!(redundant(verdict, at_least), "1 pod could take over", "{verdict:?}, {at_least:?}");
    }
}

#[test]
fn groups_with_the_same_refusal_have_one_cause_in_the_log() {
    let (_, message) = active(&refused(HookPolicy::default()));
    let forbidden = message.replace("web-1 is", "pods \"web-1\" is");
    let mut causes = Causes::default();
    for (is_new, other) in [(true, "web"), (false, "front"), (false, "shop")] {
        let message = forbidden.replace("web-", &format!("{other}-"));
        assert_eq!(causes.is_new_reason("WriteRefused", &message, NOW), is_new, "{message}");
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
    while let Some((_, Effect::Try { .. })) = stage.asked.first() {
        stage.carry_out();
    }
    assert!(matches!(stage.phase(), Phase::Stopping { .. }), "{:?}", stage.phase());
    assert!(stage.are_true(&stands), "the former pod serves until then");
    // Somebody takes its label off.
    stage.world.members[0].role = Role::Standby;
    stage.group.step(Event::World(stage.world.clone()), NOW);
    assert!(!stage.are_true(&[ConditionType::Routed]), "{:?}", stage.phase());
}
