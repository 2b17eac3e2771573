//! Hand-over: from the call of release until the next waiter returns with the key.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leadergroup_lock::{Client, ClientConfig, Key};
use serde_json::json;
use sqlx::Executor as _;
use tokio::time::sleep;

use crate::machine::{Bench, connect, execute, store};
use crate::measure::Latencies;
use crate::report::{Report, number};

/// The least number of hand-overs, however short the time.
const FEWEST: usize = 100;
/// Numbers of other processes that only listen, as every process that uses the lock does.
const BYSTANDERS: [usize; 2] = [0, 30];

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let table = Report::table(
        "Hand-over: from release to the next one's return, and a bare commit beside it",
        &[("other processes", 15), ("", -10), ("count", 7), ("p50 ms", 8), ("p99 ms", 8), ("longest ms", 10)],
    );
    let mut figures = Vec::new();
    for bystanders in BYSTANDERS {
        let (handed, bare) = measure(bench, bystanders).await?;
        for (name, times) in [("hand-over", &handed), ("commit", &bare)] {
            table.row(&[
                bystanders.to_string(),
                name.to_owned(),
                times.count().to_string(),
                number(times.quantile(0.5)),
                number(times.quantile(0.99)),
                number(times.quantile(1.0)),
            ]);
            figures.push(json!({ "bystanders": bystanders, "kind": name, "times": times.json() }));
        }
        if bystanders == 0 {
            report.at_most(
                "hand-over p99 beyond a commit's, ms",
                handed.quantile(0.99) - bare.quantile(0.99),
                5.0,
            );
            report.summarise(format!(
                "hand-over: p50 {:.1} ms and p99 {:.1} ms beyond a commit",
                handed.quantile(0.5) - bare.quantile(0.5),
                handed.quantile(0.99) - bare.quantile(0.99),
            ));
        }
    }
    report.figures("handover", figures);
    Ok(())
}

async fn measure(bench: &Bench, bystanders: usize) -> Result<(Latencies, Latencies)> {
    let database = bench.migrated().await?;
    execute(&database, "create table bare as select 0 as n").await?;
    let mut commits = connect(&database).await?;
    let mut admin = database.admin().await;
    let client = async |name: String| {
        let config = ClientConfig { name, ..ClientConfig::default() };
        anyhow::Ok(Client::connect(store(&database, 3)?, config).await?)
    };
    let mut others = Vec::new();
    for number in 0..bystanders {
        others.push(client(format!("bystander-{number}")).await?);
    }
    // For the lock, each of them is a separate process.
    let clients = [client("one".to_owned()).await?, client("other".to_owned()).await?];
    let key = Key::new("handed-over")?;
    let (mut handed, mut bare) = (Vec::new(), Vec::new());
    let mut held = clients[0].lock(&key, Duration::from_secs(10)).await?;
    let mut end = None;
    for round in 1.. {
        let next = clients[round % 2].clone();
        let wanted = key.clone();
        let waiter = tokio::spawn(async move {
            let guard = next.lock(&wanted, Duration::from_mins(1)).await;
            (guard, Instant::now())
        });
        queued(&mut admin).await?;
        let began = Instant::now();
        let released = tokio::spawn(held.release());
        let (guard, returned) = waiter.await?;
        let _ = released.await??;
        held = guard?;
        let committing = Instant::now();
        commits.execute("update bare set n = n + 1").await?;
        // The first rounds are not counted: everything is done for the first time.
        let end = *end.get_or_insert(began + Duration::from_millis(500).min(bench.time) + bench.time);
        if began + bench.time < end {
            continue;
        }
        handed.push(returned - began);
        bare.push(committing.elapsed());
        if Instant::now() > end && handed.len() >= FEWEST {
            break;
        }
    }
    let _ = held.release().await?;
    for client in others.into_iter().chain(clients) {
        client.shutdown().await?;
    }
    Ok((Latencies::of(handed), Latencies::of(bare)))
}

/// Waits until there is a waiter in the queue.
async fn queued(admin: &mut sqlx::postgres::PgConnection) -> Result<()> {
    let began = Instant::now();
    loop {
        let waiters: i64 =
            sqlx::query_scalar("select count(*) from leadergroup.waiter").fetch_one(&mut *admin).await?;
        if waiters > 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < Duration::from_mins(1), "no waiter queues up");
        sleep(Duration::from_millis(1)).await;
    }
}
