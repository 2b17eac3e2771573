//! How long clients wait when the active pod changes: LeaderGroup beside what a user would pick instead.
//!
//! `make bench-failover` prints a table and a last line, and writes all figures as JSON. Arguments choose changes and
//! candidates by parts of their names; `quiet` alone looks for false failovers. docs/benchmarks.md explains what is
//! measured, and how.

#![allow(missing_docs, reason = "a program, not a library")]
#![allow(clippy::cast_precision_loss, reason = "figures for people, far below 2^52")]

mod bench;
mod candidate;
mod fault;
#[path = "../../../lock/benches/lock/measure.rs"]
#[allow(dead_code, reason = "the lock's benchmark uses the rest")]
mod measure;
mod observed;
mod outcome;
#[path = "../../../lock/benches/lock/plot.rs"]
#[allow(dead_code, reason = "the lock's benchmark uses the rest")]
mod plot;
mod program;
mod quiet;
#[path = "../../../lock/benches/lock/report.rs"]
#[allow(dead_code, reason = "the lock's benchmark uses the rest")]
mod report;
#[path = "../../../lock/benches/lock/rivals.rs"]
#[allow(dead_code, reason = "the lock's benchmark uses the rest")]
mod rivals;
mod round;
mod timelines;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use bench::{Bench, Plan};

/// Rounds of each change unless `LEADERGROUP_BENCH_ROUNDS` says otherwise.
const ROUNDS: usize = 30;
/// How long to look for false failovers unless `LEADERGROUP_BENCH_MINUTES` says otherwise.
const MINUTES: usize = 30;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == [program::SERVE] {
        return program::serve().await;
    }
    let rounds = setting("LEADERGROUP_BENCH_ROUNDS", ROUNDS)?;
    let minutes = setting("LEADERGROUP_BENCH_MINUTES", MINUTES)?;
    // Cargo passes flags of its own.
    let only: Vec<String> = arguments.into_iter().filter(|word| !word.starts_with('-')).collect();
    let plan = Plan { rounds, only };
    let quiet = plan.only == ["quiet"];
    if !quiet {
        plan.check()?;
    }
    let stage = bench::stage().await?;
    if quiet {
        return quiet::run(&stage, Duration::from_mins(minutes as u64)).await;
    }
    Bench::set_up(stage, plan).await?.run().await
}

fn setting(variable: &str, default: usize) -> Result<usize> {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() {
        return Ok(default);
    }
    let number = text.parse().with_context(|| format!("{variable} must be a number"))?;
    ensure!((1..=1_000).contains(&number), "{variable} must be from 1 to 1000");
    Ok(number)
}
