//! One replica is killed, and later both are restarted one after the other: the time until all groups have an owner
//! again, and each replica's share of them afterwards. No holder may change.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use crate::{
    bench::Bench,
    measure::milliseconds,
    outcome::{Outcome, each, seconds},
    replica::NAMES,
};

/// How long the replicas have to balance their shares.
const BALANCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    bench.wait_adopted(&NAMES).await?;
    let mark = bench.observer.mark();
    let shares = shares(bench).await?;
    // The replica with more groups.
    let victim = usize::from(shares[1] > shares[0]);
    bench.take_replica(victim)?.kill()?;
    let begin = Instant::now();
    bench.wait_adopted(&[NAMES[1 - victim]]).await?;
    let adopted = milliseconds(begin.elapsed());
    bench.settle().await?;
    bench.no_other_change("a replica was killed", &[].into(), mark, outcome);
    bench.start_replica(victim).await?;
    outcome.row(
        format!("a replica with {} groups killed: adoption", shares[victim]),
        seconds(adopted),
        "",
        "4.2 s in a failover",
    );
    tokio::time::sleep(bench.plan.time(BALANCE)).await;
    let back = self::shares(bench).await?;
    outcome.row(
        "  shares after it came back",
        each(back.iter().map(|share| *share as f64), "groups"),
        "even",
        "",
    );
    outcome.figure("killed", json!({ "groups": shares[victim], "adopted_ms": adopted, "shares": back }));
    outcome.summarise(format!("adoption after a kill {}", seconds(adopted)));
    rolling(bench, outcome).await
}

/// Restarts one replica after the other: SIGTERM, and a start after its end.
async fn rolling(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    let mark = bench.observer.mark();
    let mut times = Vec::new();
    for (number, name) in NAMES.into_iter().enumerate() {
        let share = bench.share(name).await?;
        let begin = Instant::now();
        bench.take_replica(number)?.terminate(bench.plan.limit()).await?;
        let ended = milliseconds(begin.elapsed());
        bench.start_replica(number).await?;
        bench.wait_adopted(&NAMES).await?;
        let adopted = milliseconds(begin.elapsed());
        times.push(json!({ "groups": share, "ended_ms": ended, "adopted_ms": adopted }));
        outcome.row(
            format!("replica with {share} groups restarted: adoption"),
            format!("{} (it ended after {})", seconds(adopted), seconds(ended)),
            "",
            "",
        );
    }
    bench.settle().await?;
    tokio::time::sleep(bench.plan.time(BALANCE)).await;
    bench.no_other_change("the replicas were restarted", &[].into(), mark, outcome);
    let shares = shares(bench).await?;
    outcome.row(
        "  shares after both restarts",
        each(shares.iter().map(|share| *share as f64), "groups"),
        "even",
        "all at one replica",
    );
    outcome.figure("restarted", json!({ "replicas": times, "shares": shares }));
    Ok(())
}

async fn shares(bench: &Bench) -> Result<Vec<usize>> {
    let mut shares = Vec::new();
    for name in NAMES {
        shares.push(bench.share(name).await?);
    }
    Ok(shares)
}
