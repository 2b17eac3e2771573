//! What the loop costs for each event, without any I/O: 1,000 groups of three pods, all owned by this replica. Then the
//! events that come often in a large cluster: 10,000 groups on 5,000 nodes.
//!
//! `make bench` prints two tables. *Idle*: every group is at rest, and the event changes nothing that matters. *Busy*:
//! the same events while three groups in ten are in the middle of a change of holder.

use std::{ops::Range, time::Duration};

use kube::runtime::watcher;
use leadergroup_lock::controller::Claimed;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::json;

use super::{
    objects::{answered, group, name, row},
    stage::{PODS, Stage},
};
use crate::{
    api::LeaderGroup,
    operator::{index::Event, message::Message},
    ownership::{Phase, Yielded},
};

const GROUPS: usize = 1_000;
const CHANGING: usize = 300;
const ROUNDS: usize = 9;
const MANY_GROUPS: usize = 10_000;
const MANY_NODES: usize = 5_000;
/// As many groups are given to other replicas at once.
const BATCH: usize = 50;

/// The processor time of this thread: other programs on the machine do not count.
fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).expect("less than a second"))
}

/// The processor time, in microseconds, that each of so many events takes.
fn each(events: usize, run: impl FnOnce()) -> f64 {
    let began = cpu_time();
    run();
    cpu_time().saturating_sub(began).as_secs_f64() * 1e6
        / f64::from(u32::try_from(events).expect("few events"))
}

/// The median of several rounds.
fn median(mut round: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    all.sort_by(f64::total_cmp);
    all[ROUNDS / 2]
}

/// These are seen, and the loop turns after each.
fn seen(stage: &mut Stage, events: Vec<Event>) -> f64 {
    each(events.len(), || stage.see_all(events))
}

/// Each pod answers a probe.
fn probes(stage: &mut Stage) -> f64 {
    each(stage.groups * PODS, || stage.probe_all())
}

/// A newer version of each pod that is otherwise as before.
fn pods(stage: &mut Stage, deleting: usize) -> f64 {
    let newer = stage.newer_pods(deleting);
    seen(stage, newer)
}

/// Each node renews its lease.
fn leases(stage: &mut Stage) -> f64 {
    stage.now += Duration::from_secs(10);
    let seconds = stage.now.as_secs();
    let renewed = format!("2026-01-01T{:02}:{:02}:00.000000Z", seconds / 600 % 24, seconds / 10 % 60);
    let renew = |node| {
        let lease =
            json!({ "metadata": { "name": format!("node-{node}") }, "spec": { "renewTime": renewed } });
        Event::NodeLease(watcher::Event::Apply(serde_json::from_value(lease).expect("a lease")))
    };
    let renewals = (0..stage.nodes).map(renew).collect();
    seen(stage, renewals)
}

/// A label of each node changes.
fn node_labels(stage: &mut Stage) -> f64 {
    stage.now += Duration::from_secs(1);
    let label = stage.now.as_secs().to_string();
    let change = |node| {
        let node = json!({ "metadata": { "name": format!("node-{node}"), "labels": { "changes": label } } });
        Event::Node(watcher::Event::Apply(serde_json::from_value(node).expect("a node")))
    };
    let changes = (0..stage.nodes).map(change).collect();
    seen(stage, changes)
}

/// A heartbeat shows that other replicas gave up their claims to these groups.
fn heartbeat(stage: &mut Stage, given_up: Range<usize>) -> f64 {
    let mut yielded = Yielded::None;
    given_up.for_each(|group| yielded.add(row(group, stage.own).key));
    each(1, || {
        stage.beat(&[], yielded);
        stage.turn();
    })
}

/// Claims groups that all name one key, which belongs to another group.
fn claims_of_one_key(groups: usize) -> f64 {
    let mut stage = Stage::before_lists(groups, None, Duration::from_mins(10));
    let mut objects: Vec<LeaderGroup> = (0..groups).map(group).collect();
    for object in &mut objects {
        object.spec.lock.key = Some("one".to_owned());
    }
    stage.list_groups(objects);
    // Those of a key are claimed in the order of their names.
    let mut order: Vec<usize> = (0..groups).collect();
    order.sort_by_key(|group| name(*group));
    each(groups, || {
        stage.beat(&[], Yielded::None);
        stage.turn();
        for group in order {
            let view = stage.view(&name(group));
            assert!(matches!(view.group.ownership.phase(), Phase::Claiming(_)));
            let answers = vec![answered(group, Claimed::Foreign { group: "other".to_owned() })];
            stage.take(Message::Claimed { session: stage.own, answers });
            stage.turn();
        }
    })
}

#[test]
#[ignore = "a measurement: see `make bench`"]
fn what_each_event_costs() {
    let mut stage = Stage::new(GROUPS, PODS);
    let idle = (median(|| probes(&mut stage)), median(|| pods(&mut stage, 0)));
    stage.begin_changes(CHANGING);
    let busy = (median(|| probes(&mut stage)), median(|| pods(&mut stage, CHANGING)));
    println!("{GROUPS} groups of {PODS} pods; processor time of an event, µs");
    println!("{:<24}{:>10}{:>10}", "event", "idle", "busy");
    println!("{:<24}{:>10.2}{:>10.2}", "probe, sent and answered", idle.0, busy.0);
    println!("{:<24}{:>10.2}{:>10.2}", "pod, nothing new", idle.1, busy.1);

    let mut stage = Stage::new(MANY_GROUPS, MANY_NODES);
    leases(&mut stage);
    let rows = [
        ("lease of a node", median(|| leases(&mut stage))),
        ("label of a node", median(|| node_labels(&mut stage))),
        ("heartbeat", median(|| heartbeat(&mut stage, 0..0))),
        ("heartbeat, 1 group given", median(|| heartbeat(&mut stage, 0..1))),
        ("heartbeat, 50 groups given", median(|| heartbeat(&mut stage, 0..BATCH))),
        ("claim of a shared key", claims_of_one_key(MANY_GROUPS)),
    ];
    println!("\n{MANY_GROUPS} groups of {PODS} pods on {MANY_NODES} nodes; processor time of an event, µs");
    for (event, took) in rows {
        println!("{event:<28}{took:>10.1}");
    }
}
