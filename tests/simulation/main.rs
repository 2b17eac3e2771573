//! The election and its preconditions in a model of its environment: two replicas and three pods, with every order of
//! events up to a bound and long random schedules. The election is the real code. PostgreSQL, the API server and the
//! execution of effects are modelled, request by request.
//!
//! The invariants are checked at every write (`server.rs`) and every decision (`replica.rs`). At the end of each
//! random schedule all faults are removed, and the group must settle (`heal.rs`).

#![allow(clippy::too_many_lines, reason = "a test tells one story from its beginning to its end")]
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
#![allow(clippy::large_enum_variant, reason = "a model must be readable, and holds few of each")]

mod action;
mod checks;
mod choices;
mod conformance;
mod database;
mod evidence;
mod explore;
mod heal;
mod model;
mod others;
mod published;
#[path = "../../e2e/src/random.rs"]
mod random;
mod replica;
mod server;
mod task;

use action::{Action, Faults};
use explore::{exhaust, is_usual, seeds, walk};
use leadergroup::{api::Role, election::Effect};
use model::{Freshness, Model, NAMES};
use replica::Replica;
use server::{Health, Refusal};
use task::{Job, Task};

/// A settled group, with watches and probes that are never late.
fn settled(faults: Faults) -> Model {
    let mut model = Model::new(Faults::default());
    model.heal();
    assert_eq!(model.unsettled(), None, "without a fault");
    model.faults = faults;
    model
}

#[test]
fn a_group_settles() {
    let mut model = settled(Faults::default());
    assert_eq!(model.server.promotions, 1, "without a fault there is one promotion");
    model.work();
    assert_eq!(model.server.promotions, 1);
}

#[test]
fn a_failed_active_pod_is_replaced_and_frees_the_lock() {
    for fate in [
        |pod| Action::Crash { pod },
        |pod| Action::Delete { pod },
        |pod| Action::Ail { pod, health: Health::Refusing },
        |pod| Action::Ail { pod, health: Health::Hung },
    ] {
        let mut model = settled(Faults::all());
        let before = model.server.actives()[0].pod.clone();
        let pod = NAMES.iter().position(|name| *name == before.name).unwrap();
        let action = fate(pod);
        model.apply(action);
        model.work();
        assert_eq!(model.unsettled(), None, "{action:?}");
        assert_ne!(model.server.actives()[0].pod, before, "{action:?}: there was no takeover");
        assert_eq!(model.server.promotions, 2, "{action:?}");
    }
}

/// A pod that is not active, and is preferred as the next holder.
fn next_in_line(model: &Model) -> usize {
    let pods = &model.server.pods;
    NAMES.iter().position(|name| pods[*name].role == Role::Standby).unwrap()
}

#[test]
fn a_pod_that_an_admission_policy_refuses_to_change_is_passed_over() {
    for refusal in [Refusal::Promotion, Refusal::Role, Refusal::Unclear] {
        let mut model = settled(Faults::all());
        let active = model.server.actives()[0].pod.name.clone();
        let pod = next_in_line(&model);
        model.apply(Action::Refuse { pod, refusal });
        let failed = NAMES.iter().position(|name| *name == active).unwrap();
        model.apply(Action::Ail { pod: failed, health: Health::Hung });
        model.work();
        assert_eq!(model.unsettled(), None, "{refusal:?}");
        let now = &model.server.actives()[0].pod.name;
        assert!(*now != active && *now != NAMES[pod], "{refusal:?}: {now} is active");
        assert_eq!(model.server.promotions, 2, "{refusal:?}");
    }
}

#[test]
fn a_replica_that_exits_hands_over_without_a_change_of_holder() {
    let mut model = settled(Faults::all());
    let owner = |model: &Model| model.replicas.iter().position(Replica::is_owner);
    let replica = owner(&model).unwrap();
    model.apply(Action::Stop { replica, clean: true });
    // The other replica does not wait for the session to expire.
    let other = 1 - replica;
    model.apply(Action::Claim { replica: other });
    while !model.replicas[other].tasks.is_empty() {
        model.apply(Action::Answer { replica: other, task: 0 });
    }
    assert_eq!((owner(&model), model.server.promotions), (Some(other), 1));
}

#[test]
fn a_group_that_comes_after_a_deleted_one_goes_on_with_its_tokens() {
    let mut model = settled(Faults::all());
    let before = model.row().unwrap().token;
    model.apply(Action::DeleteGroup);
    model.work();
    assert_eq!(model.unsettled(), None);
    assert!(model.row().unwrap().token > before);
}

#[test]
fn a_pod_that_others_label_active_during_a_change_is_not_stamped_while_another_is_active() {
    let mut model = settled(Faults::without_lost_commits());
    let silent = Action::Ail { pod: 0, health: Health::Hung };
    let (answer, probe) =
        (Action::Answer { replica: 1, task: 0 }, |replica| Action::Probe { replica, pod: 0 });
    for action in [
        Action::MarkDead { replica: 0 },
        Action::Claim { replica: 1 },
        answer,
        silent,
        probe(0),
        probe(1),
        answer,
        Action::MarkDead { replica: 1 },
        Action::Relabel { pod: 1, role: Role::Active },
    ] {
        assert!(model.actions().contains(&action), "{action:?}");
        model.apply(action);
    }
    assert_eq!(model.conclude(0), None);
}

/// I5: the database lost commits, so the active pod is to keep its role under a new term. Then a list from before its
/// promotion, and no probe, leave its replica without evidence about it, in the middle of the change.
#[test]
fn a_pod_that_neither_watch_nor_probe_shows_to_be_active_is_not_replaced() {
    let mut model = settled(Faults::all());
    let replica = 1;
    let answer = Action::Answer { replica, task: 0 };
    let watch = Action::WatchPod { replica };
    for action in [
        Action::Rewind { steps: 3 },
        Action::Stop { replica, clean: false },
        Action::Start { replica },
        Action::WatchGroup { replica },
        Action::Beat { replica },
        watch,
        Action::Claim { replica },
    ] {
        model.apply(action);
    }
    let declares = |task: &Task| matches!(task.job, Job::Effect(_, Effect::Declare { .. }));
    while !model.replicas[replica].tasks.iter().any(declares) {
        model.apply(answer);
    }
    for action in [Action::RelistPods { replica, back: 5 }, watch, watch, answer, watch] {
        model.apply(action);
    }
    let mut resumed = model.clone();
    for action in [Action::Probe { replica, pod: 1 }, Action::Wake { replica }, answer] {
        model.apply(action);
    }
    assert_eq!(model.conclude(0), None);
    // The result is the same if there is evidence at first and the replica resumes the change.
    for pod in [0, 1] {
        resumed.apply(Action::Probe { replica, pod });
    }
    resumed.apply(Action::Stale { replica, pod: 0 });
    for _ in 0..2 {
        if !resumed.replicas[replica].tasks.is_empty() {
            resumed.apply(answer);
        }
    }
    assert_eq!(resumed.conclude(0), None);
}

/// Its pod was gone, so the lock was to be freed, but the answer is late. When the pod is back, nothing may free the
/// lock without the owner's knowledge.
#[test]
fn a_release_that_is_late_does_not_take_the_lock_from_a_pod_that_came_back() {
    let mut model = settled(Faults::all());
    model.freshness = Freshness::Everything;
    let replica = model.replicas.iter().position(Replica::is_owner).unwrap();
    for pod in 0..NAMES.len() {
        model.apply(Action::Leave { pod });
    }
    let vacates = |task: &Task| matches!(task.job, Job::Effect(_, Effect::Vacate { .. }));
    while !model.replicas[replica].tasks.iter().any(vacates) {
        model.apply(Action::Answer { replica, task: 0 });
    }
    model.apply(Action::TimeOut { replica, task: 0 });
    for pod in 0..NAMES.len() {
        model.apply(Action::Rejoin { pod });
    }
    model.work();
    model.apply(Action::Arrive { packet: 0 });
    assert_eq!(model.unsettled(), None);
}

#[test]
fn long_random_schedules() {
    let mut promotions = 0;
    for seed in seeds(400) {
        promotions += walk(&Model::new(Faults::all()), seed, 400).promotions;
    }
    let enough = !is_usual() || promotions > 400;
    assert!(enough, "only {promotions} promotions: the schedules test too little");
}

#[test]
fn long_random_schedules_without_lost_commits() {
    for seed in seeds(200) {
        walk(&settled(Faults::without_lost_commits()), seed, 400);
    }
}

#[test]
fn long_random_schedules_in_which_the_pods_stay_well() {
    for seed in seeds(200) {
        let faults = Faults { rewinds: 3, empties: 1, ..Faults::components_only() };
        walk(&settled(faults), seed, 400);
    }
}

/// Explores all schedules of two replicas with these faults, in which the holder changes.
fn exhausted(faults: Faults, freshness: Freshness, depth: usize) {
    let mut model = settled(faults);
    model.freshness = freshness;
    let explored = exhaust(&model, depth);
    assert!(explored.states > 1_000 && explored.promotions > 1, "this tests too little: {explored:?}");
}

#[test]
fn every_order_when_a_pod_fails_and_a_replica_is_paused() {
    exhausted(Faults { ails: 1, mark_dead: 1, ..Faults::default() }, Freshness::Everything, 13);
}

#[test]
fn every_order_when_a_pod_fails_and_a_request_is_late() {
    exhausted(Faults { ails: 1, time_outs: 2, wakes: 2, ..Faults::default() }, Freshness::Everything, 15);
}

/// The holder failed, and the promotion of the next one is in flight, but its sender has stopped waiting.
fn promotion_on_its_way() -> Model {
    let mut model = settled(Faults::all());
    model.freshness = Freshness::Everything;
    let replica = model.replicas.iter().position(Replica::is_owner).unwrap();
    let active = model.server.actives()[0].pod.name.clone();
    let pod = NAMES.iter().position(|name| *name == active).unwrap();
    model.apply(Action::Ail { pod, health: Health::Hung });
    let promotes = |task: &Task| matches!(task.job, Job::Effect(_, Effect::Promote { .. }));
    while !model.replicas[replica].tasks.iter().any(promotes) {
        model.apply(Action::Answer { replica, task: 0 });
    }
    model.apply(Action::TimeOut { replica, task: 0 });
    model
}

#[test]
fn every_order_when_a_promotion_is_late_and_its_pod_fails() {
    let mut model = promotion_on_its_way();
    let declared = model.server.group.as_ref().unwrap().declared.clone();
    let late = NAMES.iter().position(|name| *name == declared.holder.as_ref().unwrap().name).unwrap();
    model.apply(Action::Ail { pod: late, health: Health::Refusing });
    // Either the same replica continues, or another one takes over the group in the middle.
    model.faults = Faults { wakes: 2, mark_dead: 1, ..Faults::default() };
    let explored = exhaust(&model, 13);
    assert!(explored.promotions > 2, "the late promotion, or the one after it, did not happen: {explored:?}");
}

#[test]
fn every_order_when_a_label_is_taken_off_and_a_pod_fails() {
    exhausted(
        Faults { unlabels: 1, ails: 1, time_outs: 1, wakes: 2, ..Faults::default() },
        Freshness::Everything,
        13,
    );
}

#[test]
fn every_order_when_a_label_is_taken_off_and_an_older_group_selects_the_pods() {
    let faults = Faults { unlabels: 1, contests: 1, mark_dead: 1, ..Faults::default() };
    exhausted(faults, Freshness::Everything, 7);
}

#[test]
fn every_order_when_a_pod_fails_and_the_watches_lag() {
    exhausted(Faults { ails: 1, mark_dead: 1, ..Faults::default() }, Freshness::AllButPods, 11);
}

#[test]
fn every_order_when_a_pod_leaves_the_selector_and_returns() {
    exhausted(Faults { leaves: 1, mark_dead: 1, ..Faults::default() }, Freshness::AllButPods, 10);
}

#[test]
fn every_order_when_a_cache_goes_back_in_time() {
    let mut model = settled(Faults { relists: 2, wakes: 1, ..Faults::default() });
    model.freshness = Freshness::AllButPods;
    let explored = exhaust(&model, 9);
    assert!(explored.states > 1_000, "this tests too little: {explored:?}");
    assert_eq!(explored.promotions, 1, "the pods are well");
}

#[test]
fn every_order_when_a_pod_goes_and_a_replica_is_killed() {
    exhausted(Faults { deletes: 1, stops: 1, ..Faults::default() }, Freshness::Everything, 9);
}

#[test]
fn every_order_when_a_pod_crashes_and_the_group_is_paused() {
    exhausted(
        Faults { crashes: 1, pauses: 1, mark_dead: 1, wakes: 2, ..Faults::default() },
        Freshness::Everything,
        13,
    );
}

#[test]
fn every_order_when_a_switchover_is_requested_and_a_replica_is_paused() {
    let faults = Faults { requests: 1, mark_dead: 1, time_outs: 1, wakes: 1, ..Faults::default() };
    exhausted(faults, Freshness::Everything, 12);
}

#[test]
fn every_order_when_a_switchover_is_requested_and_a_pod_fails() {
    exhausted(Faults { requests: 1, ails: 1, wakes: 1, ..Faults::default() }, Freshness::AllButPods, 10);
}

#[test]
fn every_order_when_a_node_is_cordoned_and_a_replica_is_paused() {
    let faults = Faults { cordons: 1, mark_dead: 1, time_outs: 1, wakes: 1, ..Faults::default() };
    exhausted(faults, Freshness::Everything, 11);
}

#[test]
fn every_order_when_nodes_are_cordoned_and_a_pod_fails() {
    exhausted(Faults { cordons: 2, ails: 1, wakes: 1, ..Faults::default() }, Freshness::AllButPods, 8);
}

#[test]
fn every_order_when_a_path_is_cut_and_the_group_is_handed_over() {
    exhausted(Faults { cuts: 1, time_outs: 1, mark_dead: 1, ..Faults::default() }, Freshness::Everything, 8);
}

#[test]
fn every_order_when_a_path_is_cut_and_a_pod_fails() {
    exhausted(Faults { cuts: 1, ails: 1, ..Faults::default() }, Freshness::Everything, 10);
}

/// I5: the active pod works, and the owner does not hear it. It stays, and the group goes to the replica that hears it.
#[test]
fn a_group_moves_to_the_replica_that_hears_its_active_pod() {
    let mut model = settled(Faults::all());
    let owner = |model: &Model| model.replicas.iter().position(Replica::is_owner);
    let replica = owner(&model).unwrap();
    let active = model.server.actives()[0].pod.name.clone();
    let pod = NAMES.iter().position(|name| *name == active).unwrap();
    model.apply(Action::CutPath { replica, pod });
    model.work();
    assert_eq!(model.server.actives()[0].pod.name, active, "while the group stays");
    assert!(model.may_hand_over(replica));
    model.apply(Action::HandOver { replica });
    let other = 1 - replica;
    model.apply(Action::Claim { replica: other });
    while !model.replicas[other].tasks.is_empty() {
        model.apply(Action::Answer { replica: other, task: 0 });
    }
    assert_eq!((owner(&model), model.server.promotions), (Some(other), 1));
    // There the failure of the pod is noticed.
    model.apply(Action::Ail { pod, health: Health::Hung });
    model.work();
    assert_eq!(model.unsettled(), None);
    assert_ne!(model.server.actives()[0].pod.name, active);
}

#[test]
fn every_order_when_a_pod_fails_and_probes_are_late() {
    exhausted(Faults { ails: 1, mark_dead: 1, ..Faults::default() }, Freshness::AllButProbes, 9);
}

#[test]
fn every_order_when_the_owner_changes_and_the_group_is_seen_late() {
    exhausted(Faults { ails: 1, mark_dead: 1, ..Faults::default() }, Freshness::AllButGroup, 9);
}
