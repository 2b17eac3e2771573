//! A third of all pods hang for two minutes: their connections are accepted, and nothing is answered.

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

const TIME: Duration = Duration::from_mins(2);
/// Until the changes of holder are over, and only the hanging itself costs something.
const CHANGES: Duration = Duration::from_secs(40);
/// How long the replicas have to give memory back.
const AFTERWARDS: Duration = Duration::from_mins(1);

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    // One of each group: every group has pods that can take over.
    let hung = |group: usize| group / PODS % PODS;
    let mut groups = BTreeSet::new();
    for (group, pod) in bench.observer.holders() {
        if Place::of(&pod)?.address() == Workload::place(group, hung(group)).address() {
            groups.insert(group);
        }
    }
    let mark = bench.observer.mark();
    let begin = Instant::now();
    bench.responder.hang((0..bench.plan.groups).map(|group| Workload::place(group, hung(group)).address()));
    let what = format!("{} pods hung, {} of them active", bench.plan.groups, groups.len());
    let times = bench.failovers(&what, &groups, mark, |_| begin, outcome).await?;
    sleep_since(begin, bench.plan.time(CHANGES)).await;
    let cores = bench.cores(bench.plan.time(TIME - CHANGES)).await?;
    bench.responder.hang([]);
    let percent: Vec<f64> = cores.iter().map(|share| share * 100.0).collect();
    tokio::time::sleep(bench.plan.time(AFTERWARDS)).await;
    bench.settle().await?;
    bench.no_other_change(&format!("{what}, then well again"), &groups, mark, outcome);
    let memory = bench.memory()?;
    outcome.row(&what, spread(&times), "p50 T + 2 s, p99 T + 6 s", "");
    outcome.row("  CPU of each replica meanwhile", each(percent.iter().copied(), "% of a core"), "", "");
    outcome.row(
        "  memory of each replica after it (and at most)",
        memory
            .iter()
            .map(|(now, most)| format!("{now:.0} MB ({most:.0} MB)"))
            .collect::<Vec<_>>()
            .join(" and "),
        "80 MB",
        "",
    );
    outcome
        .figure("hung", json!({ "what": what, "times": times.json(), "cores": cores, "memory_mb": memory }));
    outcome.summarise(format!("{what}: {}", each(percent, "% of a core")));
    Ok(())
}
