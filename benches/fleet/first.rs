//! All groups are created at once: the time until each has its first holder.

use std::{collections::BTreeSet, time::Instant};

use anyhow::Result;
use serde_json::json;

use crate::{
    bench::Bench,
    measure::{Latencies, milliseconds},
    outcome::{Outcome, seconds},
    requests::Requests,
};

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    let all: BTreeSet<usize> = (0..bench.plan.groups).collect();
    let before = Requests::so_far(&bench.client).await?;
    let mark = bench.observer.mark();
    let begin = Instant::now();
    bench.workload.create_groups().await?;
    let created = milliseconds(begin.elapsed());
    let times = bench.failovers(&all, mark, |_| begin).await?;
    let requests = Requests::so_far(&bench.client).await?.since(&before, "CREATE leadergroups");
    settled(bench, outcome, begin, &times, created, &requests).await
}

async fn settled(
    bench: &Bench,
    outcome: &mut Outcome,
    begin: Instant,
    times: &Latencies,
    created: f64,
    requests: &Requests,
) -> Result<()> {
    let all: BTreeSet<usize> = (0..bench.plan.groups).collect();
    let quiet = milliseconds(bench.settle().await? - begin);
    bench.no_other_change("after the first holders", &all, 0, outcome);
    let last = times.quantile(1.0);
    outcome.row(
        format!("first holder of {} groups", bench.plan.groups),
        format!(
            "half after {}, all after {} (all created after {}), quiet after {}",
            seconds(times.quantile(0.5)),
            seconds(last),
            seconds(created),
            seconds(quiet)
        ),
        "25 s",
        "75 to 90 s",
    );
    outcome.requests("  API requests a group", requests, bench.plan.groups, "", "");
    outcome.figure(
        "first",
        json!({ "created_ms": created, "times": times.json(), "quiet_ms": quiet, "requests": requests.json() }),
    );
    outcome.summarise(format!("{} first holders {}", bench.plan.groups, seconds(last)));
    Ok(())
}
