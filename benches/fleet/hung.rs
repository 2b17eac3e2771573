//! A third of all pods hang for two minutes: they accept connections and never answer. Some active pods are slow: they
//! answer later than the timeout of a probe. And pods of other groups hang while groups of the fleet fail over.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::json;

use crate::{
    bench::Bench,
    measure::Latencies,
    network::{self, Fault},
    outcome::{Outcome, each, spread},
    replica::NAMES,
    strangers::Strangers,
    workload::{PODS, Place, Workload, sleep_since},
};

/// The failovers are over after this time. CPU is measured afterwards.
const CHANGES: Duration = Duration::from_secs(40);
const MEASURED: Duration = Duration::from_secs(80);
/// Longer than the timeout of a probe.
const DELAY: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(20);
const SLOW_PODS: usize = 30;
/// How many pods of other groups hang.
const STRANGERS: usize = 300;
/// How long they hang before anything else fails: longer than most of their timeouts.
const HANG: Duration = Duration::from_secs(30);
/// How many groups fail over for each figure.
const FAILOVERS: usize = 100;
/// The time between two pods that fail. A change of holder after a deletion ends before the next one.
const ONE_BY_ONE: Duration = Duration::from_millis(300);
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

/// Compares failovers without and with pods of other groups that hang, under a single replica that does all the work.
pub(crate) async fn strangers(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    let [stays, leaves] = [0, 1];
    bench.take_replica(leaves)?.terminate(bench.plan.limit()).await?;
    bench.wait_adopted(&[NAMES[stays]]).await?;
    let alone = [deletions(bench, outcome).await?, silences(bench, outcome).await?];
    let number = if bench.plan.short { PODS * 5 } else { STRANGERS };
    let strangers = Strangers::start(bench, number).await?;
    bench.responder.hang(strangers.addresses(), Duration::MAX);
    tokio::time::sleep(bench.plan.time(HANG)).await;
    let beside = [deletions(bench, outcome).await?, silences(bench, outcome).await?];
    let memory = bench.memory()?;
    bench.responder.heal();
    strangers.remove(bench).await?;
    bench.start_replica(leaves).await?;
    bench.wait_adopted(&NAMES).await?;
    let what = format!("{number} pods of other groups hang");
    for (kind, (alone, beside)) in
        ["deleted", "silent, since the last answer"].into_iter().zip(alone.iter().zip(&beside))
    {
        let later = |share: f64| beside.quantile(share) - alone.quantile(share);
        let [median, p99] = [later(0.5), later(0.99)];
        outcome.row(format!("{} active pods {kind}", alone.count()), spread(alone), "", "");
        outcome.row(format!("  the same while {what}"), spread(beside), "", "");
        outcome.row("  later by", format!("p50 {median:.0} ms, p99 {p99:.0} ms"), "100 ms", "for ever");
        outcome.figure(
            "strangers",
            json!({ "kind": kind, "alone": alone.json(), "beside": beside.json(), "later_p50_ms": median, "later_p99_ms": p99 }),
        );
        outcome.summarise(format!("{what}: pods {kind} replaced {median:.0} ms later"));
    }
    outcome.memory_after(&memory, "");
    Ok(())
}

/// Active pods are deleted one by one: the times from each deletion to the next active pod.
async fn deletions(bench: &mut Bench, outcome: &mut Outcome) -> Result<Latencies> {
    bench.settle().await?;
    let (groups, holders) = (bench.choose(FAILOVERS), bench.observer.holders());
    let pods: Vec<String> = groups.iter().map(|group| holders[group].clone()).collect();
    let mark = bench.observer.mark();
    for pod in &pods {
        bench.workload.delete_pods(std::slice::from_ref(pod)).await?;
        tokio::time::sleep(ONE_BY_ONE).await;
    }
    let observer = bench.observer.clone();
    let from = |group: usize| observer.deleted_at(&holders[&group]).unwrap_or_else(Instant::now);
    let times = bench.failovers(&groups, mark, from).await?;
    bench.generation += 1;
    bench.workload.replace_pods(&pods, bench.generation).await?;
    bench.settle().await?;
    bench.no_other_change("pods deleted beside pods that hang", &groups, mark, outcome);
    Ok(times)
}

/// Active pods fall silent one by one, as they are deleted above: at once, they would delay each other. The times from
/// the last answer of each to the next active pod. The time of the fault itself would add up to an interval, by chance.
async fn silences(bench: &mut Bench, outcome: &mut Outcome) -> Result<Latencies> {
    bench.settle().await?;
    let (groups, holders) = (bench.choose(FAILOVERS), bench.observer.holders());
    let addresses: BTreeMap<usize, Ipv4Addr> = groups
        .iter()
        .map(|group| Ok((*group, Place::of(&holders[group])?.address())))
        .collect::<Result<_>>()?;
    let mark = bench.observer.mark();
    for address in addresses.values() {
        network::start_fault(Fault::Silent, std::slice::from_ref(address))?;
        tokio::time::sleep(ONE_BY_ONE).await;
    }
    let responder = bench.responder.clone();
    let from = |group: usize| responder.heard(addresses[&group]).unwrap_or_else(Instant::now);
    let times = bench.failovers(&groups, mark, from).await?;
    network::heal(Fault::Silent)?;
    bench.settle().await?;
    bench.no_other_change("pods silent beside pods that hang", &groups, mark, outcome);
    Ok(times)
}
