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
    report::number,
    requests::Requests,
};

/// How long the replicas have to balance their shares.
const BALANCE: Duration = Duration::from_mins(1);
/// The share that each replica has at least, once they are balanced, in percent; few groups may be spread less evenly.
const FAIR: usize = 40;

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.rest().await?;
    bench.wait_adopted(&NAMES).await?;
    let mark = bench.observer.mark();
    let shares = shares(bench).await?;
    // The replica with more groups.
    let victim = usize::from(shares[1] > shares[0]);
    let requests = Requests::so_far(&bench.client).await?;
    bench.take_replica(victim)?.kill()?;
    let begin = Instant::now();
    bench.wait_adopted(&[NAMES[1 - victim]]).await?;
    let adopted = milliseconds(begin.elapsed());
    // Each replica pings the API server.
    let requests = Requests::so_far(&bench.client).await?.since(&requests, "GET namespaces");
    if requests.total() > 0.0 {
        outcome.wrong(format!("the adoption took requests to the API server: {}", requests.per(1)));
    }
    bench.settle().await?;
    bench.no_other_change("a replica was killed", &[].into(), mark, outcome);
    bench.start_replica(victim).await?;
    outcome.row(
        format!("a replica with {} groups killed: adoption", shares[victim]),
        seconds(adopted),
        "session ttl + heartbeat + 1 s: 6 s",
        "4.2 s in a failover",
    );
    outcome.row("  API requests until then", number(requests.total()), "0", "");
    let back = balanced(bench, "it came back", "", outcome).await?;
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
        let share = bench.share(&[name]).await?;
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
    let shares = balanced(bench, "both restarts", "all at one replica", outcome).await?;
    bench.no_other_change("the replicas were restarted", &[].into(), mark, outcome);
    outcome.figure("restarted", json!({ "replicas": times, "shares": shares }));
    Ok(())
}

/// Waits until the groups are shared fairly, and reports the shares.
async fn balanced(
    bench: &Bench,
    event: &str,
    first_version: &'static str,
    outcome: &mut Outcome,
) -> Result<Vec<usize>> {
    let least = if bench.plan.short { 1 } else { bench.plan.groups * FAIR / 100 };
    let begin = Instant::now();
    let shares = loop {
        let shares = shares(bench).await?;
        if shares.iter().all(|share| *share >= least) && shares.iter().sum::<usize>() == bench.plan.groups {
            break shares;
        }
        if begin.elapsed() > BALANCE {
            outcome.wrong(format!("after {event} the replicas own {shares:?} groups"));
            break shares;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let figures = each(shares.iter().map(|share| *share as f64), "groups");
    let took = seconds(milliseconds(begin.elapsed()));
    outcome.row(
        format!("  shares after {event}"),
        format!("{figures}, after {took}"),
        "40 to 60 %",
        first_version,
    );
    Ok(shares)
}

async fn shares(bench: &Bench) -> Result<Vec<usize>> {
    let mut shares = Vec::new();
    for name in NAMES {
        shares.push(bench.share(&[name]).await?);
    }
    Ok(shares)
}
