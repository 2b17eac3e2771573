//! Many active pods fail at the same moment: they fall silent, refuse connections or are deleted. A node fails with all
//! of its pods.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::json;

use crate::{
    bench::Bench,
    measure::Latencies,
    network::{self, Fault},
    outcome::{Outcome, spread},
    plot::{Axis, Lines, Series},
    requests::Requests,
    workload::{PODS, Place, Workload},
};

/// How many pods fail at once.
const SIZES: [usize; 3] = [30, 100, 300];
const NODE: usize = 3;
/// The time between two pods that are deleted one by one: each change of holder ends before the next deletion.
const ONE_BY_ONE: Duration = Duration::from_millis(300);
/// Longer than the duration of a node's lease, so that its expiry is measured too.
const NODE_AWAY: Duration = Duration::from_mins(1);

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    let mut sizes: Vec<usize> = SIZES.into_iter().filter(|size| *size <= bench.plan.groups).collect();
    if bench.plan.short || sizes.is_empty() {
        sizes = vec![bench.plan.groups / 2];
    }
    let most = sizes[sizes.len() - 1];
    let probed = bench.plan.probed;
    for (fault, name) in [(Fault::Silent, "silent"), (Fault::Refusing, "refusing")] {
        if !probed || !bench.wants(name) {
            continue;
        }
        for &size in &sizes {
            let result = unreachable(bench, outcome, fault, size, size == most).await;
            bench.ended(result, outcome).await?;
        }
    }
    if bench.wants("deleted") {
        let alone = sizes.iter().find(|size| **size >= 100).map(|size| (*size, ONE_BY_ONE));
        for (size, apart) in alone.into_iter().chain(sizes.iter().map(|size| (*size, Duration::ZERO))) {
            let result = deleted(bench, outcome, size, apart).await;
            bench.ended(result, outcome).await?;
        }
    }
    if probed && bench.wants("node") {
        let result = node(bench, outcome).await;
        bench.ended(result, outcome).await?;
    }
    Ok(())
}

/// So many active pods fall silent or refuse connections.
async fn unreachable(
    bench: &mut Bench,
    outcome: &mut Outcome,
    fault: Fault,
    size: usize,
    largest: bool,
) -> Result<()> {
    bench.settle().await?;
    let (name, wanted, before) = match fault {
        Fault::Silent if size <= 30 => ("silent", "p50 T + 2 s, p99 T + 6 s", "p50 4.8 s, p99 5.6 s"),
        Fault::Silent => ("silent", "p50 T + 2 s, p99 T + 6 s", "of 420: p50 17 s, 234 within 25 s"),
        Fault::Refusing => ("refusing", "", ""),
    };
    let holders = bench.observer.holders();
    let groups = bench.choose(size);
    let addresses =
        groups.iter().map(|group| Ok(Place::of(&holders[group])?.address())).collect::<Result<Vec<_>>>()?;
    let requests = Requests::so_far(&bench.client).await?;
    let mark = bench.observer.mark();
    let begin = Instant::now();
    network::start_fault(fault, &addresses)?;
    let what = format!("{size} active pods {name}");
    let times = bench.failovers(&groups, mark, |_| begin).await?;
    let requests = Requests::so_far(&bench.client).await?.since(&requests, "");
    network::heal(fault)?;
    bench.settle().await?;
    bench.no_other_change(&format!("{what}, then well again"), &groups, mark, outcome);
    add_rows(outcome, &what, &times, &requests, wanted, before);
    if largest && matches!(fault, Fault::Silent) && !bench.plan.short {
        outcome.picture("fleet-silent.svg", distribution(&times));
    }
    Ok(())
}

/// So many active pods are deleted, each by a request of its own: at once, or one by one.
async fn deleted(bench: &mut Bench, outcome: &mut Outcome, size: usize, apart: Duration) -> Result<()> {
    bench.settle().await?;
    let holders = bench.observer.holders();
    let groups = bench.choose(size);
    let pods: Vec<String> = groups.iter().map(|group| holders[group].clone()).collect();
    let requests = Requests::so_far(&bench.client).await?;
    let mark = bench.observer.mark();
    let (what, wanted, before) = if apart.is_zero() {
        bench.workload.delete_pods(&pods).await?;
        let before = if size < 100 { "" } else { "of 103: p50 2.7 s, p99 4.7 s" };
        (format!("{size} active pods deleted"), "p50 0.5 s, p99 1.5 s", before)
    } else {
        for pod in &pods {
            bench.workload.delete_pods(std::slice::from_ref(pod)).await?;
            tokio::time::sleep(apart).await;
        }
        (format!("{size} active pods deleted one by one"), "p99 100 ms", "")
    };
    let observer = bench.observer.clone();
    // Counted from the watch event: sending 300 requests takes time too.
    let from = |group: usize| observer.deleted_at(&holders[&group]).unwrap_or_else(Instant::now);
    let times = bench.failovers(&groups, mark, from).await?;
    let requests = Requests::so_far(&bench.client).await?.since(&requests, "DELETE pods");
    bench.generation += 1;
    bench.workload.replace_pods(&pods, bench.generation).await?;
    bench.settle().await?;
    bench.no_other_change(&format!("{what}, then replaced"), &groups, mark, outcome);
    add_rows(outcome, &what, &times, &requests, wanted, before);
    Ok(())
}

/// A node loses power: its pods fall silent, and its lease stops.
async fn node(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    let mut groups = BTreeSet::new();
    for (group, pod) in bench.observer.holders() {
        if Place::of(&pod)?.node() == NODE {
            groups.insert(group);
        }
    }
    let places = (0..bench.plan.groups).flat_map(|group| (0..PODS).map(move |number| (group, number)));
    let addresses: Vec<_> = places
        .map(|(group, number)| Workload::place(group, number))
        .filter(|place| place.node() == NODE)
        .map(Place::address)
        .collect();
    let requests = Requests::so_far(&bench.client).await?;
    let mark = bench.observer.mark();
    let begin = Instant::now();
    bench.workload.power_off(NODE);
    network::start_fault(Fault::Silent, &addresses)?;
    let what = format!("node lost with {} pods, {} of them active", addresses.len(), groups.len());
    let times = bench.failovers(&groups, mark, |_| begin).await?;
    let requests = Requests::so_far(&bench.client).await?.since(&requests, "");
    crate::workload::sleep_since(begin, bench.plan.time(NODE_AWAY)).await;
    bench.workload.restore_power();
    network::heal(Fault::Silent)?;
    bench.settle().await?;
    bench.no_other_change(&format!("{what}, then back"), &groups, mark, outcome);
    add_rows(outcome, &what, &times, &requests, "p50 T + 2 s, p99 T + 6 s", "");
    Ok(())
}

fn add_rows(
    outcome: &mut Outcome,
    what: &str,
    times: &Latencies,
    requests: &Requests,
    wanted: &'static str,
    before: &'static str,
) {
    outcome.row(what, spread(times), wanted, before);
    outcome.requests("  API requests a change", requests, times.count(), "", "18");
    outcome.figure("failovers", json!({ "what": what, "times": times.json(), "requests": requests.json() }));
    outcome.summarise(format!("{what}: {}", spread(times)));
}

/// The share of groups with a new holder, over time.
fn distribution(times: &Latencies) -> String {
    let steps = 100;
    let point = |step: i32| {
        let share = f64::from(step) / f64::from(steps);
        (times.quantile(share) / 1e3, share * 100.0)
    };
    let lines = Lines {
        title: "Active pods that fall silent at once: groups with a new active pod (silenceTimeout 5 s)",
        x: "seconds after the last packet",
        y: "% of groups",
        across: Axis::Linear,
        series: vec![Series { name: "groups", points: (1..=steps).map(point).collect() }],
    };
    lines.svg()
}
