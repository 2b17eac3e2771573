//! PostgreSQL and then the API server are down for a while. No holder may change. Measures the time from the end of the
//! outage to the last write.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use tokio::{task::block_in_place, time::sleep};

use crate::{
    bench::Bench,
    measure::milliseconds,
    outcome::{Outcome, seconds},
    replica::NAMES,
};

const POSTGRES_AWAY: Duration = Duration::from_secs(10);
const API_SERVER_AWAY: Duration = Duration::from_secs(15);

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    let mark = bench.observer.mark();
    block_in_place(|| bench.postgres.kill());
    sleep(POSTGRES_AWAY).await;
    block_in_place(|| bench.postgres.launch());
    quiet(bench, outcome, mark, "PostgreSQL away for 10 s").await?;

    let mark = bench.observer.mark();
    bench.api_server.kill();
    sleep(API_SERVER_AWAY).await;
    bench.api_server.launch().await;
    quiet(bench, outcome, mark, "API server away for 15 s").await
}

/// Waits until nothing changes any more, and reports how long after the end of the outage that was.
async fn quiet(bench: &Bench, outcome: &mut Outcome, mark: usize, what: &'static str) -> Result<()> {
    let back = Instant::now();
    bench.wait_adopted(&NAMES).await?;
    let adopted = milliseconds(back.elapsed());
    // Consequences of an outage can come some time after its end.
    sleep(bench.plan.time(Duration::from_secs(30))).await;
    let last = bench.settle().await?;
    let quiet = milliseconds(last.saturating_duration_since(back));
    bench.no_other_change(what, &[].into(), mark, outcome);
    outcome.row(
        what,
        format!("quiet {} after the end, all groups owned within {}", seconds(quiet), seconds(adopted)),
        "no change",
        "",
    );
    outcome.figure("outages", json!({ "what": what, "quiet_ms": quiet, "adopted_ms": adopted }));
    outcome.summarise(format!("{what}: quiet after {}", seconds(quiet)));
    Ok(())
}
