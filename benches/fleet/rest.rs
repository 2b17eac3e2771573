//! The cost of all groups while nothing happens.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use crate::{
    bench::Bench,
    outcome::{Outcome, each},
    replica::NAMES,
    report::number,
    requests::Requests,
};

/// How long is measured.
const TIME: Duration = Duration::from_mins(1);
const LAST_EVENTS: Duration = Duration::from_secs(20);
/// The query is a transaction itself.
const TRANSACTIONS: &str = "select (xact_commit + xact_rollback)::bigint from pg_stat_database
                            where datname = current_database()";

pub(crate) async fn run(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    bench.settle().await?;
    // The last Events are written some time after the last change.
    tokio::time::sleep(bench.plan.time(LAST_EVENTS)).await;
    let mark = bench.observer.mark();
    let begin = Instant::now();
    let requests = Requests::so_far(&bench.client).await?;
    let transactions = bench.database.number(TRANSACTIONS).await;
    let answered = bench.responder.answered();
    let cores = bench.cores(bench.plan.time(TIME)).await?;
    let answered = (bench.responder.answered() - answered) as f64;
    let transactions = (bench.database.number(TRANSACTIONS).await - transactions - 1) as f64;
    let requests = Requests::so_far(&bench.client).await?.since(&requests, "");
    let time = begin.elapsed().as_secs_f64();
    bench.no_other_change("at rest", &[].into(), mark, outcome);

    let replicas = NAMES.len() as f64;
    let memory = bench.memory()?;
    let connections = NAMES.map(|name| {
        bench.record.samples(name).iter().map(|sample| sample.connections).max().unwrap_or_default()
    });
    let probes = answered / time / replicas;
    let probe = cores.iter().sum::<f64>() / (answered / time) * 1e6;
    let (all, writes) = (requests.total() / time / replicas, requests.writes() / time / replicas);
    let commits = transactions / time / replicas;
    let (wanted_cpu, wanted_memory, cpu_before, memory_before) = if bench.plan.probed {
        ("10 % of a core", "80 MB", "32 % of a core", "290 MB")
    } else {
        ("", "250 MB for 10,000 groups", "", "124 MB; 489 MB for 10,000 groups")
    };
    let percent: Vec<f64> = cores.iter().map(|share| share * 100.0).collect();
    let cost = if bench.plan.probed { format!(", {} us a probe", number(probe)) } else { String::new() };
    outcome.row(
        "at rest: CPU of each replica",
        format!("{}{cost}", each(percent.iter().copied(), "% of a core")),
        wanted_cpu,
        cpu_before,
    );
    let now = memory.iter().map(|(now, _)| *now);
    outcome.row("  memory of each replica", each(now.clone(), "MB"), wanted_memory, memory_before);
    let told = format!("{} (reads {})", number(writes), number(all - writes));
    outcome.row("  API writes a second and replica", told, "0", "0");
    outcome.row("  transactions a second and replica", number(commits), "2", "1.3");
    outcome.row(
        "  connections of each replica to the API server, at most so far",
        each(connections.iter().map(|count| *count as f64), ""),
        "8",
        "377 of both",
    );
    outcome.row("  probes answered a second and replica", number(probes), "", "2,000");
    outcome.figure(
        "rest",
        json!({
            "cores": cores, "memory_mb": memory, "requests_per_second": all, "writes_per_second": writes,
            "requests": requests.json(), "transactions_per_second": commits, "connections": connections,
            "probes_per_second": probes, "seconds": time,
        }),
    );
    outcome.summarise(format!("at rest {}, {}", each(percent, "% of a core"), each(now, "MB")));
    Ok(())
}
