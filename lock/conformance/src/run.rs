//! A run: all scenarios, several at a time.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use tokio::sync::Semaphore;

use crate::checks::Record;
use crate::history::Recorder;
use crate::postgres::Server;
use crate::random::Random;
use crate::report::Report;
use crate::rules::{Trouble, Violation};
use crate::scenarios::{SCENARIOS, Scenario};
use crate::settings::Settings;
use crate::stage::{self, Stage};

/// Starts a server, and runs the scenarios once. An error is this program's own: the run says nothing about the client.
pub async fn conform(settings: Settings) -> anyhow::Result<Report> {
    Bench::start().await?.conform(settings).await
}

/// How many scenarios run at a time on one server, in all runs together. With more, a small machine is too slow.
const ROOM: u32 = 10;

/// A server for any number of runs.
#[derive(Debug, Clone)]
pub struct Bench {
    server: Arc<Server>,
    room: Arc<Semaphore>,
}

impl Bench {
    /// Starts the server.
    pub async fn start() -> anyhow::Result<Self> {
        Ok(Self { server: stage::server(&[]).await?, room: Arc::new(Semaphore::new(ROOM as usize)) })
    }

    /// Runs the scenarios.
    pub async fn conform(&self, settings: Settings) -> anyhow::Result<Report> {
        run(settings, self).await
    }
}

async fn run(settings: Settings, bench: &Bench) -> anyhow::Result<Report> {
    let recorder = settings.history.as_deref().map(Recorder::create).transpose()?;
    let recorder = recorder.as_ref();
    let is_named = |scenario: &Scenario| settings.only.iter().any(|name| scenario.name == name);
    let is_meant =
        |scenario: &Scenario| settings.only.iter().any(|word| scenario.name.contains(word.as_str()));
    let some_are_named = SCENARIOS.iter().any(is_named);
    let wanted = |scenario: &&Scenario| {
        settings.only.is_empty() || if some_are_named { is_named(scenario) } else { is_meant(scenario) }
    };
    let mut all: Vec<&Scenario> = SCENARIOS.iter().filter(wanted).collect();
    let mut runs = Vec::new();
    for round in 0..settings.rounds {
        let seed = settings.seed + u64::from(round);
        let own = Arc::new(Settings { seed, ..settings.clone() });
        shuffle(&mut all, seed);
        runs.extend(all.iter().map(|scenario| (*scenario, Arc::clone(&own))));
    }
    let mut report = Report { scenarios: runs.len(), ..Report::default() };
    let mut results = stream::iter(runs)
        .map(async |(scenario, settings)| (scenario, repeat(scenario, settings, bench, recorder).await))
        .buffer_unordered(settings.at_a_time.max(1));
    while let Some((scenario, found)) = results.next().await {
        let found = found.map_err(|error| error.context(format!("the scenario `{}`", scenario.name)))?;
        let Found::Broken(found) = found else {
            if let Found::Unchecked(why) = found {
                report.skipped.insert(scenario.name, why);
            }
            continue;
        };
        for violation in found {
            let all = report.broken.entry(violation.rule).or_default();
            if !all.iter().any(|(name, _)| *name == scenario.name) {
                all.push((scenario.name, violation.seen));
            }
        }
    }
    Ok(report)
}

/// Orders the scenarios by a seed.
fn shuffle(all: &mut [&Scenario], seed: u64) {
    let mut random = Random(seed);
    for place in (1..all.len()).rev() {
        all.swap(place, random.below(place + 1));
    }
}

/// Runs a scenario, and again if all that was found can have come from a slow machine: with fewer others at a time.
async fn repeat(
    scenario: &Scenario,
    settings: Arc<Settings>,
    bench: &Bench,
    recorder: Option<&Recorder>,
) -> anyhow::Result<Found> {
    let mut found = Vec::new();
    for attempt in 0..settings.attempts.max(1) {
        let room = bench.room.acquire_many(if attempt == 0 { 1 } else { ROOM / 2 }).await?;
        let answer = once(scenario, Arc::clone(&settings), Arc::clone(&bench.server), recorder).await?;
        drop(room);
        found = match answer {
            Found::Broken(found) => found,
            unchecked @ Found::Unchecked(_) => return Ok(unchecked),
        };
        let certain: Vec<Violation> = found.iter().filter(|violation| violation.certain).cloned().collect();
        if !certain.is_empty() {
            return Ok(Found::Broken(certain));
        }
        if found.is_empty() {
            break;
        }
    }
    Ok(Found::Broken(found))
}

/// What a scenario showed.
enum Found {
    /// These rules were broken.
    Broken(Vec<Violation>),
    /// It could not be played.
    Unchecked(String),
}

async fn once(
    scenario: &Scenario,
    settings: Arc<Settings>,
    server: Arc<Server>,
    recorder: Option<&Recorder>,
) -> anyhow::Result<Found> {
    let server = if scenario.own_server { stage::server(&[]).await? } else { server };
    let mut stage = Stage::set(settings, server).await?;
    let played = (scenario.play)(&mut stage).await;
    stage.end_writes().await;
    let lines = stage.history.lock().clone();
    let events = stage.events().await?;
    stage.clear().await;
    recorder.map_or(Ok(()), |recorder| recorder.write(scenario.name, &lines))?;
    let record = Record {
        events: &events,
        lines: &lines,
        ttl: stage.ttl(),
        slack: stage.slack(),
        lease: scenario.lease,
        lost_grant: scenario.lost_grant,
    };
    let mut found = record.check();
    match played {
        Ok(()) => {}
        Err(Trouble::Broken(violation)) => found.push(violation),
        Err(Trouble::Unchecked(why)) => return Ok(Found::Unchecked(why)),
        Err(Trouble::Own(error)) => return Err(error),
    }
    if stage.settings.trace && !found.is_empty() {
        trace(scenario.name, &events, &lines);
    }
    Ok(Found::Broken(found))
}

/// Prints everything that a scenario recorded.
fn trace(name: &str, events: &[crate::audit::Event], lines: &[crate::process::Line]) {
    let mut all: Vec<(Duration, String)> = Vec::new();
    all.extend(events.iter().map(|event| (event.at(), format!("  {event:?}"))));
    all.extend(
        lines.iter().map(|line| (line.at, format!("{} {:?} -> {:?}", line.who, line.command, line.answer))),
    );
    all.sort();
    eprintln!("-- {name}");
    for (at, text) in all {
        eprintln!("{:10} {text}", at.as_millis());
    }
}
