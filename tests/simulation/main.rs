//! The election and its preconditions against a model of everything around it: two replicas and three pods, every order of
//! events up to a bound, and long random ones. The election is the real one; PostgreSQL, the API server and what carries
//! the effects out are modelled, request by request.
//!
//! The invariants are judged at every write (`server.rs`) and every decision (`replica.rs`), and the end of each random
//! schedule is healed and has to settle (`heal.rs`).

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]
#![allow(clippy::large_enum_variant, reason = "a model is to be read, and holds few of each")]

mod action;
mod choices;
mod database;
mod explore;
mod heal;
mod model;
mod replica;
mod server;
mod task;

use action::{Action, Faults};
use explore::{exhaust, walk};
use model::{Model, NAMES};
use replica::Replica;
use server::Health;

/// A group that has settled, with watches and probes that are never late.
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
    assert_eq!(model.server.promotions, 1, "without a fault nobody is promoted twice");
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
        assert_ne!(model.server.actives()[0].pod, before, "{action:?}: nobody took over");
        assert_eq!(model.server.promotions, 2, "{action:?}");
    }
}

#[test]
fn a_replica_that_exits_hands_over_without_a_change_of_holder() {
    let mut model = settled(Faults::all());
    let charged = |model: &Model| model.replicas.iter().position(Replica::is_in_charge);
    let replica = charged(&model).unwrap();
    model.apply(Action::Stop { replica, clean: true });
    // The other one needs no expiry of the session.
    let other = 1 - replica;
    model.apply(Action::Claim { replica: other });
    while !model.replicas[other].tasks.is_empty() {
        model.apply(Action::Answer { replica: other, task: 0 });
    }
    assert_eq!((charged(&model), model.server.promotions), (Some(other), 1));
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
fn long_random_schedules() {
    let mut promotions = 0;
    for seed in 1..=600 {
        promotions += walk(&Model::new(Faults::all()), seed, 400).promotions;
    }
    assert!(promotions > 600, "only {promotions} promotions: the schedules test too little");
}

#[test]
fn long_random_schedules_in_which_the_pods_stay_well() {
    for seed in 1..=300 {
        let faults = Faults { rewinds: 3, empties: 1, ..Faults::components_only() };
        walk(&settled(faults), seed, 400);
    }
}

/// Each of these is seen through completely: whatever two replicas do, in any order, with those faults.
fn exhausted(faults: Faults, depth: usize) {
    let mut model = settled(faults);
    model.prompt = true;
    let explored = exhaust(&model, depth);
    assert!(explored.states > 1_000 && explored.promotions > 1, "this tests too little: {explored:?}");
}

#[test]
fn every_order_when_a_pod_fails_and_a_replica_is_paused() {
    exhausted(Faults { ails: 1, mark_dead: 1, ..Faults::default() }, 13);
}

#[test]
fn every_order_when_a_pod_fails_and_a_request_is_late() {
    exhausted(Faults { ails: 1, time_outs: 2, wakes: 2, ..Faults::default() }, 15);
}

#[test]
fn every_order_when_a_pod_goes_and_a_replica_is_killed() {
    exhausted(Faults { deletes: 1, stops: 1, ..Faults::default() }, 9);
}
