//! Pods that are told their role by their hooks.

use super::*;
use crate::api::OnHookFailure::{Abort, Continue};

/// A group whose pods are told both roles, as the API server and the watch show it.
struct Told {
    case: Case,
    world: World,
}

/// The requests to hooks so far, each as role, token and pods.
type Request = (Role, i64, Vec<String>);

fn hooks(promote: Option<crate::api::OnHookFailure>, demote: Option<crate::api::OnHookFailure>) -> World {
    let mut world = settled();
    world.policy.hooks = HookPolicy { promote, demote };
    world
}

fn failed(name: &str) -> Outcome {
    Outcome::Told(vec![(pod(name), "HTTP 500".to_owned())])
}

fn told() -> Outcome {
    Outcome::Told(Vec::new())
}

fn request(effect: &Effect) -> Option<Request> {
    match effect {
        Effect::Tell { role, token, pods, .. } => {
            Some((*role, *token, pods.iter().map(|pod| pod.name.clone()).collect()))
        }
        _ => None,
    }
}

fn to(role: Role, token: i64, pods: &[&str]) -> Request {
    (role, token, pods.iter().map(|name| (*name).to_owned()).collect())
}

impl Told {
    /// a is active with token 5, and this replica has told it so.
    fn new(world: World) -> Self {
        let mut group = Self { case: Case::stable(world.clone()), world };
        group.play(&mut |_| told());
        group
    }

    fn change(&mut self, change: impl FnOnce(&mut World)) {
        change(&mut self.world);
        self.case.world(self.world.clone());
    }

    fn request_switchover(&mut self, id: &str, to: &str) {
        let request = SwitchoverRequest { id: id.to_owned(), to: Some(to.to_owned()) };
        self.change(|world| world.switchover = Some(request));
    }

    fn active(&self) -> Vec<&str> {
        let active = self.world.members.iter().filter(|member| member.role == Role::Active);
        active.map(|member| member.pod.name.as_str()).collect()
    }

    fn failed_hooks(&self) -> Vec<(&str, &str)> {
        let failed = self.case.group.failed_hooks();
        failed.map(|(member, why)| (member.pod.name.as_str(), why)).collect()
    }

    /// Carries out what the group asks for until it asks for nothing, and answers hooks like this. Returns the requests
    /// to hooks, in order.
    fn play(&mut self, answer: &mut dyn FnMut(&Request) -> Outcome) -> Vec<Request> {
        let mut requests = Vec::new();
        for _ in 0..100 {
            let next = |(_, effect): &(Ticket, Effect)| !matches!(effect, Effect::Finished(_));
            let Some(at) = self.case.asked.iter().position(next) else { return requests };
            let (ticket, effect) = self.case.asked.remove(at);
            let left = std::mem::take(&mut self.case.asked);
            let outcome = match request(&effect) {
                Some(request) => {
                    let outcome = answer(&request);
                    requests.push(request);
                    outcome
                }
                None => self.perform(&effect),
            };
            self.case.step(Event::Outcome(ticket, outcome, self.world.clone()));
            self.case.asked.extend(left);
        }
        panic!("it does not come to rest: {:?}", self.case.asked);
    }

    fn perform(&mut self, effect: &Effect) -> Outcome {
        match effect {
            Effect::Grant(grant) => Outcome::Granted { token: grant.expected.max(grant.floor) + 1 },
            Effect::Declare { next, .. } => {
                self.world.declared = next.clone();
                Outcome::Declared
            }
            Effect::Strip { token, pods } => {
                self.label(pods.iter().map(|at| &at.pod), Role::Standby, *token);
                Outcome::Stripped
            }
            Effect::Promote { token, pod, .. } => {
                self.label([pod], Role::Active, *token);
                Outcome::Promoted
            }
            Effect::Confirm { .. } => Outcome::Confirmed,
            Effect::Stamp { token, pods } => {
                self.label(pods.iter().map(|at| &at.pod), Role::Standby, *token);
                Outcome::Stamped(Vec::new())
            }
            Effect::Try { .. } => Outcome::Accepted,
            Effect::Verify(_) => Outcome::Verified(None),
            Effect::Recheck(_) => Outcome::Rechecked {
                version: Some("11".to_owned()),
                declared: Some(self.world.declared.clone()),
                row: Some(self.case.group.row().clone()),
            },
            other => panic!("{other:?}"),
        }
    }

    fn label<'a>(&mut self, pods: impl IntoIterator<Item = &'a PodRef>, role: Role, token: i64) {
        for pod in pods {
            let found = self.world.members.iter_mut().find(|member| member.pod == *pod);
            let member = found.expect("a member");
            (member.role, member.stamp) = (role, Some(token));
        }
    }

    /// Lets time pass until the group wants to do something.
    fn wait(&mut self) -> Duration {
        let before = self.case.now;
        self.case.now = self.case.group.wake().expect("it is tried again");
        self.case.step(Event::Tick);
        self.case.now.saturating_sub(before)
    }
}

#[test]
fn the_former_pod_is_told_first_and_then_the_next_one_before_it_is_labelled() {
    let mut group = Told::new(hooks(Some(Abort), Some(Abort)));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    assert_eq!(group.case.grant().holder, pod("b"));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        group.case.answer(outcome);
    }
    assert_eq!(request(&group.case.effect()), Some(to(Role::Standby, 6, &["a"])));
    let Effect::Tell { reason, .. } = group.case.effect() else { panic!("{:?}", group.case.asked) };
    assert_eq!(reason, Reason::PodDeleted);
    assert!(group.case.group.is_past_declaration() && group.case.group.is_changing());
    group.case.answer(told());
    assert_eq!(request(&group.case.effect()), Some(to(Role::Active, 6, &["b"])));
    assert_eq!(group.case.group.waits_for_hooks(), Some(Role::Active));
    group.case.answer(told());
    let promoted = Effect::Promote { token: 6, pod: pod("b"), version: "11".to_owned() };
    assert_eq!(group.case.effect(), promoted);
}

#[test]
fn each_pod_is_told_once_and_again_when_its_container_restarts() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.request_switchover("1", "b");
    let requests = group.play(&mut |_| told());
    assert_eq!(requests, [to(Role::Standby, 6, &["a"]), to(Role::Active, 6, &["b"])]);
    group.case.step(Event::Tick);
    assert_eq!(group.play(&mut |_| told()), []);
    group.change(|world| world.members[1].verdict = Verdict::Unknown);
    group.change(|world| world.members[1].restarts = 1);
    assert_eq!(group.play(&mut |_| told()), [], "the program is being started");
    group.change(|world| world.members[1].verdict = Verdict::Eligible);
    assert_eq!(group.play(&mut |_| told()), [to(Role::Active, 6, &["b"])]);
    group.request_switchover("2", "a");
    let requests = group.play(&mut |_| told());
    assert_eq!(requests, [to(Role::Standby, 7, &["b"]), to(Role::Active, 7, &["a"])]);
    assert_eq!(group.active(), ["a"]);
}

#[test]
fn one_kind_of_hook_is_enough() {
    for (policy, role, pods) in [
        (hooks(Some(Continue), None), Role::Active, ["b", "a", "b"]),
        (hooks(None, Some(Continue)), Role::Standby, ["a", "b", "a"]),
    ] {
        let mut group = Told { case: Case::stable(policy.clone()), world: policy };
        group.play(&mut |_| told());
        for (change, (pod, to)) in pods.into_iter().zip(["b", "a", "b"]).enumerate() {
            group.request_switchover(&change.to_string(), to);
            let requests = group.play(&mut |_| told());
            let token = 6 + i64::try_from(change).expect("a few");
            assert_eq!(requests, [super::hooks::to(role, token, &[pod])], "{change}");
        }
    }
}

#[test]
fn a_silent_pod_delays_no_change_and_is_told_when_it_answers_again() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| world.members[0].verdict = Verdict::Silent);
    assert_eq!(group.play(&mut |_| told()), [to(Role::Active, 6, &["b"])]);
    // Another change follows before it is back. No declaration names it any more.
    group.request_switchover("1", "c");
    assert_eq!(group.play(&mut |_| told()), [to(Role::Standby, 7, &["b"]), to(Role::Active, 7, &["c"])]);
    assert_eq!(group.world.declared.strip, [pod("b")]);
    group.change(|world| world.members[0].verdict = Verdict::Eligible);
    assert_eq!(group.play(&mut |_| told()), [to(Role::Standby, 7, &["a"])]);
}

#[test]
fn a_replica_that_becomes_the_owner_tells_all_pods_that_work_and_then_those_that_come() {
    let mut world = hooks(Some(Continue), Some(Continue));
    world.members[2].verdict = Verdict::Unknown;
    let mut group = Told { case: Case::stable(world.clone()), world };
    let all = [to(Role::Active, 5, &["a"]), to(Role::Standby, 5, &["b"])];
    assert_eq!(group.play(&mut |_| told()), all);
    group.change(|world| world.members[2].verdict = Verdict::Eligible);
    assert_eq!(group.play(&mut |_| told()), [to(Role::Standby, 5, &["c"])]);
}

#[test]
fn a_standby_whose_hook_always_fails_does_not_keep_others_from_being_told() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| world.members.iter_mut().for_each(|member| member.restarts = 1));
    let requests = group.play(&mut |request| if request.2 == ["b"] { failed("b") } else { told() });
    let all = [to(Role::Active, 5, &["a"]), to(Role::Standby, 5, &["b"]), to(Role::Standby, 5, &["c"])];
    assert_eq!(requests, all);
}

#[test]
fn a_pod_whose_hook_refuses_is_passed_over_and_told_that_it_is_a_standby() {
    let mut group = Told::new(hooks(Some(Abort), Some(Continue)));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    let mut asked =
        |request: &Request| if *request == to(Role::Active, 6, &["b"]) { failed("b") } else { told() };
    let requests = group.play(&mut asked);
    let all = [
        to(Role::Standby, 6, &["a"]),
        to(Role::Active, 6, &["b"]),
        to(Role::Standby, 7, &["b"]),
        to(Role::Active, 7, &["c"]),
    ];
    assert_eq!(requests, all);
    assert_eq!(group.active(), ["c"]);
    let (member, refused) = group.case.group.refused().next().expect("it is remembered");
    assert_eq!((&member.pod, refused.refusal.reason), (&pod("b"), Reason::HookFailed));
}

#[test]
fn nothing_is_written_to_a_pod_that_was_only_told_to_be_active() {
    let mut group = Told::new(hooks(Some(Abort), None));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    group.play(&mut |request| if request.1 == 6 { failed("b") } else { told() });
    assert_eq!(group.active(), ["c"]);
    assert_eq!(
        group.world.declared.strip,
        [pod("a")],
        "b was not labelled, and a policy may refuse to let it be"
    );
}

#[test]
fn attempts_at_pods_whose_hooks_always_refuse_become_rare() {
    let mut group = Told::new(hooks(Some(Abort), None));
    group.change(|world| {
        world.members.truncate(2);
        world.members[0].verdict = Verdict::Ended(Reason::PodDeleted);
    });
    let mut pauses = Vec::new();
    let mut begun = group.case.now;
    let mut attempts = 0;
    while attempts < 8 {
        let requests = group.play(&mut |_| failed("b"));
        attempts += requests.len();
        if !requests.is_empty() {
            pauses.push(group.case.now.saturating_sub(begun).as_secs());
            begun = group.case.now;
        }
        group.wait();
    }
    assert!(pauses[4..].iter().all(|pause| *pause >= 40), "{pauses:?}");
    assert_eq!(group.active(), Vec::<&str>::new());
}

#[test]
fn with_continue_the_pod_is_labelled_and_the_hook_is_sent_again_after_growing_pauses() {
    let mut group = Told::new(hooks(Some(Continue), None));
    group.request_switchover("1", "b");
    assert_eq!(group.play(&mut |_| failed("b"))[0], to(Role::Active, 6, &["b"]));
    assert_eq!(group.active(), ["b"]);
    assert_eq!(group.failed_hooks(), [("b", "HTTP 500")]);
    let mut pauses = Vec::new();
    while pauses.len() < 8 {
        let pause = group.wait();
        if !group.play(&mut |_| failed("b")).is_empty() {
            pauses.push(pause.as_secs());
        }
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    while group.play(&mut |_| told()).is_empty() {
        group.wait();
    }
    assert_eq!(group.failed_hooks(), []);
}

/// There is no dry run of a hook, and each attempt interrupts the service.
#[test]
fn planned_changes_that_a_hook_always_refuses_become_rare() {
    for (refused, policy) in [
        (to(Role::Active, 0, &["b"]), hooks(Some(Abort), None)),
        (to(Role::Standby, 0, &["a"]), hooks(Some(Continue), Some(Abort))),
    ] {
        let mut group = Told::new(policy);
        group.change(|world| {
            world.members.truncate(2);
            world.members[0].leaving = true;
        });
        let mut attempts = Vec::new();
        let end = group.case.now + Duration::from_mins(10);
        while group.case.now < end {
            let requests = group.play(&mut |request| {
                if (request.0, &request.2) == (refused.0, &refused.2) {
                    failed(&refused.2[0])
                } else {
                    told()
                }
            });
            assert_eq!(group.active(), ["a"]);
            if requests.iter().any(|request| (request.0, &request.2) == (refused.0, &refused.2)) {
                attempts.push(group.case.now.as_secs());
            }
            // A write of somebody else to the pod is no reason to try its hook again.
            group.change(|world| world.members.iter_mut().for_each(|member| member.version += "1"));
            if group.case.asked.is_empty() {
                group.wait();
            }
        }
        let pauses: Vec<_> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.len() > 5 && pauses[4..].iter().all(|pause| *pause >= 60), "{refused:?}: {pauses:?}");
    }
}

/// The pod is a candidate again after each pause, which only the API server has ended.
#[test]
fn a_dry_run_does_not_shorten_the_pauses_after_the_refusals_of_a_hook() {
    let mut group = Told::new(hooks(Some(Abort), None));
    group.change(|world| world.members.truncate(2));
    let attempted = |group: &mut Told| {
        group.change(|world| world.members[0].leaving = true);
        let requests = group.play(&mut |request| if request.2 == ["b"] { failed("b") } else { told() });
        group.change(|world| world.members[0].leaving = false);
        group.play(&mut |_| told());
        requests.iter().any(|request| request.2 == ["b"])
    };
    for pause in [5, 10, 20, 40, 80, 160, 320, 600, 600].map(Duration::from_secs) {
        assert!(attempted(&mut group), "before the pause of {pause:?}");
        assert_eq!((group.active(), group.case.group.refused().count()), (vec!["a"], 1));
        group.case.now += pause.checked_sub(Duration::from_secs(1)).expect("it is longer");
        assert!(!attempted(&mut group), "within the pause of {pause:?}");
        group.case.now += Duration::from_secs(2);
        group.case.step(Event::Tick);
        group.play(&mut |_| told());
        assert_eq!(group.case.group.refused().count(), 0, "a dry run was accepted");
    }
}

#[test]
fn only_pods_that_are_to_be_told_a_role_count_as_not_told() {
    let mut group = Told::new(hooks(Some(Abort), None));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    group.play(&mut |request| if request.2 == ["b"] { failed("b") } else { told() });
    assert_eq!(group.active(), ["c"]);
    assert_eq!(group.failed_hooks(), [], "there is no hook that tells b that it is a standby");
    group.change(|world| world.policy.hooks.demote = Some(Continue));
    group.play(&mut |request| if request.2 == ["b"] { failed("b") } else { told() });
    assert_eq!(group.failed_hooks(), [("b", "HTTP 500")]);
    group.change(|world| world.members[1].verdict = Verdict::Ended(Reason::PodDeleted));
    assert_eq!(group.failed_hooks(), []);
}

#[test]
fn a_pod_that_cannot_be_demoted_becomes_active_again_after_a_planned_change() {
    let mut group = Told::new(hooks(Some(Continue), Some(Abort)));
    group.request_switchover("1", "b");
    let requests = group.play(&mut |request| {
        if request.2 == ["a"] && request.0 == Role::Standby { failed("a") } else { told() }
    });
    let all = [to(Role::Standby, 6, &["a"]), to(Role::Active, 7, &["a"])];
    assert_eq!(requests, all);
    assert_eq!(group.active(), ["a"]);
    assert_eq!(group.world.declared.strip, [], "nothing was written to b");
    // It keeps the role for a while.
    group.change(|world| world.members[0].leaving = true);
    assert_eq!(group.play(&mut |_| told()), []);
    assert_eq!(group.active(), ["a"]);
    group.case.now += Duration::from_mins(2);
    group.case.step(Event::Tick);
    group.play(&mut |_| told());
    assert_eq!(group.active(), ["b"]);
}

#[test]
fn a_pod_that_failed_is_replaced_although_it_cannot_be_demoted() {
    for verdict in [Verdict::Ended(Reason::PodDeleted), Verdict::Failing(Reason::ProbeRefused)] {
        let mut group = Told::new(hooks(Some(Continue), Some(Abort)));
        group.change(|world| world.members[0].verdict = verdict);
        group.play(&mut |request| if request.2 == ["a"] { failed("a") } else { told() });
        assert_eq!(group.active(), ["b"], "{verdict:?}");
    }
}

#[test]
fn a_failover_goes_on_although_the_former_pod_recovers_and_cannot_be_demoted() {
    let mut group = Told::new(hooks(Some(Continue), Some(Abort)));
    group.change(|world| world.members[0].verdict = Verdict::Failing(Reason::ProbeRefused));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        group.case.answer(outcome);
    }
    assert_eq!(request(&group.case.effect()), Some(to(Role::Standby, 6, &["a"])));
    let mut world = group.world.clone();
    world.declared = group.case.group.declared().clone();
    (world.members[0].role, world.members[0].stamp) = (Role::Standby, Some(6));
    world.members[0].verdict = Verdict::Eligible;
    group.case.meanwhile(world);
    group.case.answer(failed("a"));
    assert_eq!(request(&group.case.effect()), Some(to(Role::Active, 6, &["b"])));
}

#[test]
fn a_replica_that_was_not_the_owner_for_a_while_tells_all_pods_again() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    let row = group.case.group.row().clone();
    group.case.step(Event::Disowned);
    let world = group.world.clone();
    group.case.step(Event::Owned { seed: Uuid::from_u128(9), row: Some(row), world });
    let all = [to(Role::Active, 5, &["a"]), to(Role::Standby, 5, &["b"]), to(Role::Standby, 5, &["c"])];
    assert_eq!(group.play(&mut |_| told()), all);
}

/// A change does not wait for a request in the background that hangs, and its late answer says nothing.
#[test]
fn a_late_answer_of_before_a_change_does_not_count() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| world.members[1].restarts = 1);
    let (late, effect) = group.case.asked.remove(0);
    assert_eq!(request(&effect), Some(to(Role::Standby, 5, &["b"])));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    let demoted = to(Role::Standby, 6, &["a"]);
    let promoted = to(Role::Active, 6, &["b"]);
    let requests = group.play(&mut |_| failed("b"));
    assert_eq!(requests, [demoted, promoted.clone(), promoted.clone()], "the last one is in the background");
    group.case.step(Event::Outcome(late, told(), group.world.clone()));
    assert_eq!(group.failed_hooks(), [("b", "HTTP 500")]);
    group.wait();
    assert_eq!(group.play(&mut |_| told()), [promoted]);
    assert_eq!(group.failed_hooks(), []);
}

#[test]
fn a_pod_that_fails_while_it_is_told_its_role_is_not_labelled() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped, told()] {
        group.case.answer(outcome);
    }
    let mut world = group.world.clone();
    world.declared = group.case.group.declared().clone();
    world.members[1].verdict = Verdict::Failing(Reason::ProbeRefused);
    (world.members[0].role, world.members[0].stamp) = (Role::Standby, Some(6));
    group.case.meanwhile(world);
    group.case.answer(told());
    assert_eq!(group.case.grant().holder, pod("c"));
}

#[test]
fn a_hook_that_could_not_be_sent_is_sent_under_the_same_term() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        group.case.answer(outcome);
    }
    group.world.declared = group.case.group.declared().clone();
    (group.world.members[0].role, group.world.members[0].stamp) = (Role::Standby, Some(6));
    group.case.meanwhile(group.world.clone());
    let row = group.case.group.row().clone();
    group.case.answer(Outcome::Failed);
    group.wait();
    let declared = Some(group.world.declared.clone());
    group.case.answer(Outcome::Read { row: Some(row), declared });
    assert_eq!(group.play(&mut |_| told()), [to(Role::Standby, 6, &["a"]), to(Role::Active, 6, &["b"])]);
}

#[test]
fn a_pod_that_is_active_already_keeps_the_label_although_its_hook_fails() {
    let mut group = Told::new(hooks(Some(Abort), None));
    group.change(|world| world.members[0].stamp = Some(4));
    group.play(&mut |_| failed("a"));
    for _ in 0..3 {
        assert_eq!(group.active(), ["a"]);
        group.wait();
        group.play(&mut |_| failed("a"));
    }
}

#[test]
fn a_group_without_hooks_waits_for_none() {
    let mut group = Told { case: Case::stable(settled()), world: settled() };
    group.request_switchover("1", "b");
    assert_eq!(group.play(&mut |_| told()), []);
    assert_eq!(group.active(), ["b"]);
}

/// The former owner has told it so, whether it answers this replica or not.
#[test]
fn an_active_pod_whose_hook_has_failed_in_the_background_is_told_first_that_it_is_a_standby() {
    for failed in [failed("a"), Outcome::Failed] {
        let world = hooks(Some(Continue), Some(Continue));
        let mut group = Told { case: Case::stable(world.clone()), world };
        group.play(&mut |request| if request.2 == ["a"] { failed.clone() } else { told() });
        group.request_switchover("1", "b");
        let requests = group.play(&mut |_| told());
        assert_eq!(requests, [to(Role::Standby, 6, &["a"]), to(Role::Active, 6, &["b"])], "{failed:?}");
    }
}

/// Somebody has taken it out of the selector, perhaps to look into it. It runs on.
#[test]
fn a_former_pod_that_the_selector_no_longer_matches_is_told_that_it_is_a_standby() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| drop(world.members.remove(0)));
    assert_eq!(group.case.effect(), Effect::Verify(pod("a")));
    group.case.answer(Outcome::Verified(Some(Reason::PodDeleted)));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        group.case.answer(outcome);
    }
    assert_eq!(request(&group.case.effect()), Some(to(Role::Standby, 6, &["a"])));
}

#[test]
fn no_pod_is_told_that_it_is_active_once_the_group_is_deleted() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        group.case.answer(outcome);
    }
    let mut world = group.world.clone();
    world.declared = group.case.group.declared().clone();
    (world.members[0].role, world.members[0].stamp) = (Role::Standby, Some(6));
    world.deleting = true;
    group.case.meanwhile(world);
    group.case.answer(told());
    assert_ne!(request(&group.case.effect()), Some(to(Role::Active, 6, &["b"])));
}

/// A hook may take half a minute. What forbids a promotion counts at its end, too.
#[test]
fn no_pod_is_promoted_if_the_group_is_obstructed_while_hooks_are_awaited() {
    let mut group = Told::new(hooks(Some(Continue), None));
    group.change(|world| world.members[0].verdict = Verdict::Ended(Reason::PodDeleted));
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped] {
        group.case.answer(outcome);
    }
    assert_eq!(request(&group.case.effect()), Some(to(Role::Active, 6, &["b"])));
    let mut world = group.world.clone();
    world.declared = group.case.group.declared().clone();
    (world.members[0].role, world.members[0].stamp) = (Role::Standby, Some(6));
    world.obstacle = Some(Reason::SelectedByOtherGroup);
    group.case.meanwhile(world);
    group.case.answer(told());
    let promotes = |(_, effect): &(Ticket, Effect)| matches!(effect, Effect::Promote { .. });
    assert!(!group.case.asked.iter().any(promotes), "{:?}", group.case.asked);
}

/// Attempts to give the role back to a preferred pod. Each one interrupts the service.
fn failbacks(refused: &Request, policy: World, delay: Duration) -> Vec<u64> {
    let mut group = Told::new(policy);
    group.change(|world| {
        world.members.truncate(2);
        world.members[1].priority = 10;
        world.policy.failback = Some(delay);
    });
    let mut attempts = Vec::new();
    let end = group.case.now + Duration::from_mins(20);
    while group.case.now < end {
        let requests = group.play(&mut |request| {
            if (request.0, &request.2) == (refused.0, &refused.2) { failed(&refused.2[0]) } else { told() }
        });
        assert_eq!(group.active(), ["a"]);
        if requests.iter().any(|request| (request.0, &request.2) == (refused.0, &refused.2)) {
            attempts.push(group.case.now.as_secs());
        }
        group.change(|_| {});
        if group.case.asked.is_empty() {
            group.wait();
        }
    }
    attempts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn failbacks_that_the_active_pods_hook_always_refuses_become_rare() {
    let policy = hooks(Some(Continue), Some(Abort));
    let pauses = failbacks(&to(Role::Standby, 0, &["a"]), policy, Duration::from_secs(10));
    assert!(pauses[4..].iter().all(|pause| *pause >= 60), "{pauses:?}");
}

#[test]
fn failbacks_that_the_next_pods_hook_always_refuses_become_rare() {
    let policy = hooks(Some(Abort), None);
    let pauses = failbacks(&to(Role::Active, 0, &["b"]), policy, Duration::from_secs(10));
    assert!(pauses[4..].iter().all(|pause| *pause >= 60), "{pauses:?}");
}

/// A pod may be labelled active without being named by row or declaration: the database and the status were emptied.
#[test]
fn a_pod_that_was_found_with_the_active_label_is_told_that_it_is_a_standby_before_another_follows() {
    let mut world = hooks(Some(Continue), Some(Continue));
    world.members[0].verdict = Verdict::Unknown;
    world.declared = Declaration::default();
    let mut group = Told { case: Case::new(world.clone(), Row::default()), world };
    let requests = group.play(&mut |_| told());
    assert_eq!(requests[0].0, Role::Standby, "{requests:?}");
    assert_eq!(requests[0].2, ["a"]);
}

/// Its Service routes to it all the same, and it does not know that it is to work.
#[test]
fn an_active_pod_that_was_started_again_is_told_its_role_although_no_change_is_allowed() {
    for obstacle in [Reason::RoleLabelInOwnerSelector, Reason::SelectedByOtherGroup, Reason::InvalidSpec] {
        let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
        group.change(|world| {
            world.obstacle = Some(obstacle);
            world.members[0].restarts = 1;
        });
        assert_eq!(group.play(&mut |_| told()), [to(Role::Active, 5, &["a"])], "{obstacle}");
    }
}

#[test]
fn an_active_pod_that_was_started_again_does_not_wait_for_a_standby_that_hangs() {
    let mut group = Told::new(hooks(Some(Continue), Some(Continue)));
    group.change(|world| world.members[2].restarts = 1);
    assert_eq!(request(&group.case.effect()), Some(to(Role::Standby, 5, &["c"])));
    group.change(|world| world.members[0].restarts = 1);
    let requests: Vec<_> = group.case.asked.iter().filter_map(|(_, effect)| request(effect)).collect();
    assert_eq!(requests, [to(Role::Active, 5, &["a"])]);
}
