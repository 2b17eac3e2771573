//! A third of all pods hang for two minutes: they accept connections and never answer. Some active pods are slow: they
//! answer later than the timeout of a probe.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::json;

use crate::{
    bench::Bench,
    outcome::{Outcome, each, spread},
    workload::{PODS, Place, Workload, sleep_since},
};

/// The failovers are over after this time. CPU is measured afterwards.
const CHANGES: Duration = Duration::from_secs(40);
const MEASURED: Duration = Duration::from_secs(80);
/// Longer than the timeout of a probe.
const DELAY: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(20);
const SLOW_PODS: usize = 30;
/// How long the replicas have to return memory.
const AFTERWARDS: Duration = Duration::from_mins(1);

/// Counts the active pods that are replaced although they answer, if late.
pub(crate) async fn slow(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    let holders = bench.observer.holders();
    let groups = bench.choose(SLOW_PODS);
    let addresses =
        groups.iter().map(|group| Ok(Place::of(&holders[group])?.address())).collect::<Result<Vec<_>>>()?;
    let mark = bench.observer.mark();
    bench.responder.hang(addresses, DELAY);
    tokio::time::sleep(SLOW).await;
    let changed: BTreeSet<usize> = bench.observer.since(mark).iter().map(|change| change.group).collect();
    bench.responder.heal();
    bench.settle().await?;
    bench.no_other_change("slow active pods", &groups, mark, outcome);
    outcome.row(
        format!("{} active pods answer after 2 s, for 20 s: replaced", groups.len()),
        changed.len().to_string(),
        "0",
        "all",
    );
    outcome.figure("slow", json!({ "pods": groups.len(), "replaced": changed.len() }));
    Ok(())
}

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    // One pod of each group hangs, so that each group has pods that can take over.
    let hung = |group: usize| group / PODS % PODS;
    let mut groups = BTreeSet::new();
    for (group, pod) in bench.observer.holders() {
        if Place::of(&pod)?.address() == Workload::place(group, hung(group)).address() {
            groups.insert(group);
        }
    }
    let mark = bench.observer.mark();
    let begin = Instant::now();
    let addresses = (0..bench.plan.groups).map(|group| Workload::place(group, hung(group)).address());
    bench.responder.hang(addresses, Duration::MAX);
    let what = format!("{} pods hung, {} of them active", bench.plan.groups, groups.len());
    let times = bench.failovers(&groups, mark, |_| begin).await?;
    sleep_since(begin, bench.plan.time(CHANGES)).await;
    let cores = bench.cores(bench.plan.time(MEASURED)).await?;
    bench.responder.heal();
    let percent: Vec<f64> = cores.iter().map(|share| share * 100.0).collect();
    tokio::time::sleep(bench.plan.time(AFTERWARDS)).await;
    bench.settle().await?;
    bench.no_other_change(&format!("{what}, then well again"), &groups, mark, outcome);
    let memory = bench.memory()?;
    outcome.row(&what, spread(&times), "p50 T + 2 s, p99 T + 6 s", "");
    outcome.row("  CPU of each replica meanwhile", each(percent.iter().copied(), "% of a core"), "", "");
    outcome.memory_after(&memory, "");
    outcome
        .figure("hung", json!({ "what": what, "times": times.json(), "cores": cores, "memory_mb": memory }));
    outcome.summarise(format!("{what}: {}", each(percent, "% of a core")));
    Ok(())
}
