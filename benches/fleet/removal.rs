//! All groups are deleted at once: the time until they are gone. No pod may keep the label of an active pod.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use crate::{
    bench::Bench,
    measure::milliseconds,
    outcome::{Outcome, seconds},
    requests::Requests,
};

/// How long the replicas have to return memory.
const AFTERWARDS: Duration = Duration::from_mins(1);

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    let requests = Requests::so_far(&bench.client).await?;
    let begin = Instant::now();
    bench.workload.delete_groups().await?;
    let asked = milliseconds(begin.elapsed());
    bench.observer.wait("all groups are gone", bench.plan.limit(), |seen| seen.groups() == 0).await?;
    let gone = milliseconds(begin.elapsed());
    let requests = Requests::so_far(&bench.client).await?.since(&requests, "DELETE leadergroups");
    bench.observer.quiet(bench.plan.quiet(), bench.plan.limit()).await?;
    let left = bench.observer.holders();
    if let Some((group, pod)) = left.first_key_value() {
        outcome.wrong(format!("{} deleted groups have an active pod, such as {group}: {pod}", left.len()));
    }
    tokio::time::sleep(bench.plan.time(AFTERWARDS)).await;
    let memory = bench.memory()?;
    outcome.row(
        format!("{} groups deleted", bench.plan.groups),
        format!("gone after {} (the request took {})", seconds(gone), seconds(asked)),
        "30 s",
        "509 s",
    );
    outcome.requests("  API requests a group", &requests, bench.plan.groups, "", "");
    outcome.memory_after(&memory, "400 MB and more");
    outcome.figure(
        "removal",
        json!({ "asked_ms": asked, "gone_ms": gone, "memory_mb": memory, "requests": requests.json() }),
    );
    outcome.summarise(format!("{} groups deleted {}", bench.plan.groups, seconds(gone)));
    Ok(())
}
