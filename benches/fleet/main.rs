//! The operator's cost and speed with many groups: two replicas as processes, on a real API server, etcd and
//! PostgreSQL.
//!
//! `make bench-fleet` prints a table and a last line, and writes all figures as JSON. Arguments choose subjects by a
//! part of their name. `cargo test --bench fleet` runs a short form that fails only on wrong results. There are no
//! kubelets: the benchmark writes nodes, leases and pods, and answers the probes.

#![allow(missing_docs, reason = "a program, not a library")]
#![allow(clippy::cast_precision_loss, reason = "figures for people, far below 2^52")]

#[path = "../../tests/apiserver/mod.rs"]
mod apiserver;
mod bench;
mod failover;
mod first;
mod hung;
#[path = "../../lock/benches/lock/measure.rs"]
#[allow(dead_code, reason = "the lock's benchmark uses the rest")]
mod measure;
mod network;
mod observer;
mod outages;
mod outcome;
mod plan;
#[path = "../../lock/benches/lock/plot.rs"]
#[allow(dead_code, reason = "the lock's benchmark uses the rest")]
mod plot;
#[path = "../../lock/tests/postgres/mod.rs"]
mod postgres;
mod removal;
mod replica;
mod replicas;
#[path = "../../lock/benches/lock/report.rs"]
#[allow(dead_code, reason = "the lock's benchmark uses the rest")]
mod report;
mod requests;
mod responder;
mod rest;
mod sandbox;
mod strangers;
mod usage;
mod workload;

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use bench::Bench;
use outcome::Outcome;
use plan::Plan;

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode> {
    let plan = Plan::read()?;
    if !sandbox::is_inside() {
        return sandbox::run_inside();
    }
    sandbox::set_up()?;
    let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
    runtime.block_on(measure_all(plan))
}

/// Runs the chosen subjects one after the other, on the same groups.
async fn measure_all(plan: Plan) -> Result<ExitCode> {
    let mut bench = Bench::start(plan).await?;
    let mut outcome = Outcome::new(bench.describe());
    if let Err(error) = subjects(&mut bench, &mut outcome).await {
        outcome.wrong(format!("{error:#}"));
    }
    outcome.wrongs(bench.observer.violations());
    bench.stop(&mut outcome).await;
    outcome.finish(&bench)
}

async fn subjects(bench: &mut Bench, outcome: &mut Outcome) -> Result<()> {
    // All other subjects need the groups.
    first::run(bench, outcome).await?;
    if bench.wants("rest") {
        let result = rest::run(bench, outcome).await;
        bench.ended(result, outcome).await?;
    }
    failover::run(bench, outcome).await?;
    if bench.wants("replicas") {
        let result = replicas::run(bench, outcome).await;
        bench.ended(result, outcome).await?;
    }
    if bench.wants("outages") {
        let result = outages::run(bench, outcome).await;
        bench.ended(result, outcome).await?;
    }
    if bench.plan.probed && bench.wants("slow") {
        let result = hung::slow(bench, outcome).await;
        bench.ended(result, outcome).await?;
    }
    if bench.plan.probed && bench.wants("hung") {
        let result = hung::run(bench, outcome).await;
        bench.ended(result, outcome).await?;
    }
    if bench.plan.probed && bench.wants("strangers") {
        let result = hung::strangers(bench, outcome).await;
        bench.ended(result, outcome).await?;
    }
    if bench.wants("removal") {
        removal::run(bench, outcome).await?;
    }
    Ok(())
}
