//! For how long no program runs when its pod changes, and whether two run at a time: `leadergroup-agent` beside
//! client-go's leader election.
//!
//! `make bench-peers` prints the table of docs/benchmarks.md, which explains what is measured, and writes it with all
//! figures as JSON.

#![allow(missing_docs, reason = "a program, not a library")]

mod candidate;
mod round;

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, ensure};
use futures::future::join_all;
use leadergroup_e2e::{
    command::progress,
    images::Image,
    provider::Provider,
    scenario::{Stage, beside, target_folder},
};
use serde_json::json;

use candidate::{CANDIDATES, Candidate};
use round::{Change, Figures};

/// Rounds of each change unless `LEADERGROUP_BENCH_ROUNDS` says otherwise.
const ROUNDS: usize = 4;

/// The figures of each change and candidate, by their places in the lists.
type Measured = BTreeMap<(usize, usize), Vec<Figures>>;

#[tokio::main]
async fn main() -> Result<()> {
    let rounds = std::env::var("LEADERGROUP_BENCH_ROUNDS").unwrap_or_default();
    let rounds = if rounds.is_empty() { ROUNDS } else { rounds.parse().context("the number of rounds")? };
    ensure!((1..=1_000).contains(&rounds), "LEADERGROUP_BENCH_ROUNDS must be from 1 to 1000");

    let provider = Box::pin(Provider::from_environment()).await?;
    let cluster = provider.faults().context("the benchmark needs its own cluster")?;
    let image = Image::examples(&beside("leadergroup-agent")?, cluster.programs())?;
    cluster.load_image(&image).await?;
    let stage = Stage::start(provider, &beside("leadergroup-e2e")?, &beside("leadergroup")?).await?;
    let mut candidates = Vec::new();
    for one in CANDIDATES {
        candidates.push(Candidate::set_up(&stage, one).await?);
    }
    let mut measured = Measured::new();
    let course = measure(&candidates, rounds, &mut measured).await;
    for candidate in candidates {
        candidate.journal.remove()?;
    }
    let table = table(&measured);
    progress(&table.join("\n"));
    let row = |((change, candidate), figures): (&(usize, usize), &Vec<Figures>)| {
        let (change, candidate) = (Change::ALL[*change].name(), CANDIDATES[*candidate].0);
        json!({ "change": change, "candidate": candidate, "rounds": figures })
    };
    let rows: Vec<_> = measured.iter().map(row).collect();
    let file = target_folder()?.join("bench/peers.json");
    fs::create_dir_all(file.parent().context("a folder")?)?;
    fs::write(&file, serde_json::to_vec_pretty(&json!({ "table": table, "rows": rows }))?)?;
    progress(&format!("peers: {rounds} rounds; all figures are in {}", file.display()));
    course
}

/// Switchovers and deletions one at a time, because the start of pods keeps the machine busy. The rest mostly waits.
async fn measure(candidates: &[Candidate], rounds: usize, measured: &mut Measured) -> Result<()> {
    for round in 1..=rounds {
        for (change, one) in Change::ALL.into_iter().enumerate() {
            let figures = match one {
                Change::Planned | Change::Deletion => {
                    let mut figures = Vec::new();
                    for candidate in candidates.iter().filter(|candidate| one.is_of(candidate)) {
                        figures.push(round::measure(candidate, one, round).await?);
                    }
                    figures
                }
                Change::Crash | Change::Stop => {
                    let all = candidates.iter().map(|candidate| round::measure(candidate, one, round));
                    join_all(all).await.into_iter().collect::<Result<_>>()?
                }
                Change::PowerOff => round::power_off(candidates).await?,
            };
            let places = (0..).zip(candidates).filter(|(_, candidate)| one.is_of(candidate));
            for ((place, candidate), it) in places.zip(figures) {
                progress(&format!("{}, {}: {it:?}", one.name(), candidate.name));
                measured.entry((change, place)).or_default().push(it);
            }
        }
        progress(&format!("{round} of {rounds} rounds"));
    }
    Ok(())
}

/// The table of the documents.
fn table(measured: &Measured) -> Vec<String> {
    let mut lines = vec![
        "| change | candidate | rounds | without a program, p50 | max | rounds with two programs | for, max |"
            .to_owned(),
        "|---|---|---:|---:|---:|---:|---:|".to_owned(),
    ];
    for ((change, candidate), figures) in measured {
        let mut without: Vec<u64> = figures.iter().map(|it| it.without).collect();
        without.sort_unstable();
        let (median, longest) = (without[(without.len() - 1) / 2], without[without.len() - 1]);
        let two = figures.iter().filter(|it| it.overlap > 0).count();
        let overlap = figures.iter().map(|it| it.overlap).max().unwrap_or_default();
        let overlap = if two == 0 { "–".to_owned() } else { seconds(overlap) };
        let (change, candidate) = (Change::ALL[*change].name(), CANDIDATES[*candidate].0);
        let count = figures.len();
        let (median, longest) = (seconds(median), seconds(longest));
        lines
            .push(format!("| {change} | {candidate} | {count} | {median} | {longest} | {two} | {overlap} |"));
    }
    lines
}

/// With the resolution of the programs' clock.
fn seconds(milliseconds: u64) -> String {
    format!("{}.{:02} s", milliseconds / 1_000, milliseconds % 1_000 / 10)
}
