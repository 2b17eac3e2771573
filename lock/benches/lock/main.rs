//! What the lock costs, compared with its rivals: in one run, on one PostgreSQL that this program starts itself.
//!
//! `make bench-lock` prints a table for each subject and a last line with the ratios, and writes all figures as JSON.
//! Arguments select subjects by a part of their name. docs/benchmarks.md explains what is measured, and how.

#![allow(clippy::too_many_lines, reason = "a benchmark tells one story from its beginning to its end")]
#![allow(missing_docs, reason = "a program, not a library")]
#![allow(clippy::cast_precision_loss, reason = "figures for people, far below 2^52")]

mod contended;
mod contender;
mod failover;
mod fence;
mod handover;
mod heartbeat;
mod keeping;
mod machine;
mod measure;
mod plot;
#[path = "../../tests/postgres/mod.rs"]
mod postgres;
mod prune;
mod report;
mod rivals;

use std::time::Duration;

use anyhow::{Context as _, Result};

use machine::Bench;
use report::Report;

/// How long one measurement takes unless `LEADERGROUP_BENCH_SECONDS` says otherwise.
const SECONDS: f64 = 5.0;

#[tokio::main]
async fn main() -> Result<()> {
    let seconds = match std::env::var("LEADERGROUP_BENCH_SECONDS") {
        Ok(text) => text.parse().context("LEADERGROUP_BENCH_SECONDS must be a number of seconds")?,
        Err(_) => SECONDS,
    };
    anyhow::ensure!((0.1..=600.0).contains(&seconds), "LEADERGROUP_BENCH_SECONDS must be from 0.1 to 600");
    // Cargo passes flags of its own.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wants =
        |subject: &str| wanted.is_empty() || wanted.iter().any(|word| subject.contains(word.as_str()));

    let explain = std::env::var("LEADERGROUP_BENCH_EXPLAIN").ok();
    let bench = Bench::start(Duration::from_secs_f64(seconds), explain.as_deref())?;
    let mut report = Report::new("lock", bench.describe().await?);
    if wants("keeping") {
        keeping::run(&bench, &mut report).await?;
    }
    if wants("heartbeat") {
        heartbeat::run(&bench, &mut report).await?;
    }
    if wants("contended") {
        contended::run(&bench, &mut report).await?;
    }
    if wants("failover") {
        failover::run(&bench, &mut report).await?;
    }
    if wants("handover") {
        handover::run(&bench, &mut report).await?;
    }
    if wants("fence") {
        fence::run(&bench, &mut report).await?;
    }
    if wants("prune") {
        prune::run(&bench, &mut report).await?;
    }
    if explain.is_some() {
        Report::file("lock-plans.log", &bench.log())?;
    }
    report.finish(wanted.is_empty())
}
