//! What the operator's loop costs for each event, without any I/O: 1,000 groups of three pods, all owned by this
//! replica. Then the events that come often in a large cluster: 10,000 groups on 5,000 nodes.
//!
//! `cargo bench --bench controller` prints two tables. *Idle*: every group is at rest, and the event changes nothing
//! that matters. *Busy*: the same events while three groups in ten are in the middle of a change of holder.

#![allow(missing_docs)]

use std::time::Duration;

use leadergroup::operator::bench::Bench;

const GROUPS: usize = 1_000;
const CHANGING: usize = 300;
const ROUNDS: usize = 9;
const MANY_GROUPS: usize = 10_000;
const MANY_NODES: usize = 5_000;
/// As many groups are given to other replicas at once.
const BATCH: usize = 50;

/// The median of several rounds.
fn median(mut round: impl FnMut() -> Duration) -> f64 {
    let mut all: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    all.sort();
    all[ROUNDS / 2].as_secs_f64() * 1e6
}

fn main() {
    let mut bench = Bench::new(GROUPS, 3);
    let idle = (median(|| bench.probe_answers()), median(|| bench.pod_events(0)));
    bench.begin_changes(CHANGING);
    let busy = (median(|| bench.probe_answers()), median(|| bench.pod_events(CHANGING)));
    println!("{GROUPS} groups of 3 pods; processor time of an event, µs");
    println!("{:<24}{:>10}{:>10}", "event", "idle", "busy");
    println!("{:<24}{:>10.2}{:>10.2}", "probe, sent and answered", idle.0, busy.0);
    println!("{:<24}{:>10.2}{:>10.2}", "pod, nothing new", idle.1, busy.1);

    let mut bench = Bench::new(MANY_GROUPS, MANY_NODES);
    bench.leases();
    let rows = [
        ("lease of a node", median(|| bench.leases())),
        ("label of a node", median(|| bench.node_labels())),
        ("heartbeat", median(|| bench.heartbeat(0..0))),
        ("heartbeat, 1 group given", median(|| bench.heartbeat(0..1))),
        ("heartbeat, 50 groups given", median(|| bench.heartbeat(0..BATCH))),
        ("claim of a shared key", Bench::claims_of_one_key(MANY_GROUPS).as_secs_f64() * 1e6),
    ];
    println!("\n{MANY_GROUPS} groups of 3 pods on {MANY_NODES} nodes; processor time of an event, µs");
    for (event, took) in rows {
        println!("{event:<28}{took:>10.1}");
    }
}
