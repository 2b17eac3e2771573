//! What the operator's loop costs for each event, without any I/O: 1,000 groups of three pods, all owned by this
//! replica.
//!
//! `cargo bench --bench controller` prints a table. *Idle*: every group is at rest, and the event changes nothing that
//! matters. *Busy*: the same events while three groups in ten are in the middle of a change of holder.

#![allow(missing_docs)]

use std::time::Duration;

use leadergroup::operator::bench::Bench;

const GROUPS: usize = 1_000;
const CHANGING: usize = 300;
const ROUNDS: usize = 9;

/// The median of several rounds.
fn median(mut round: impl FnMut() -> Duration) -> f64 {
    let mut all: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    all.sort();
    all[ROUNDS / 2].as_secs_f64() * 1e6
}

fn main() {
    let mut bench = Bench::new(GROUPS);
    let idle = (median(|| bench.probe_answers()), median(|| bench.pod_events(0)));
    bench.begin_changes(CHANGING);
    let busy = (median(|| bench.probe_answers()), median(|| bench.pod_events(CHANGING)));
    println!("{GROUPS} groups of 3 pods; processor time of an event, µs");
    println!("{:<24}{:>10}{:>10}", "event", "idle", "busy");
    println!("{:<24}{:>10.2}{:>10.2}", "probe, sent and answered", idle.0, busy.0);
    println!("{:<24}{:>10.2}{:>10.2}", "pod, nothing new", idle.1, busy.1);
}
