//! Runs scenarios: those that do not affect others in parallel, then a minute of quiet for their groups, the rest one
//! after the other.

use std::{rc::Rc, time::Duration};

use anyhow::{Result, anyhow};
use futures::{StreamExt, future::LocalBoxFuture, stream};
use tokio::time;

use super::quiet::minute_of_quiet;
use super::{Stage, faults_last};
use crate::{command::progress, moment::Moment};

/// How many scenarios run in parallel. On two cores, more would only make each slower.
const SIDE_BY_SIDE: usize = 5;
/// Time limit of a scenario. Normally a scenario that hangs ends itself earlier and writes diagnostic data.
const LONGEST: Duration = Duration::from_mins(6);

/// The requirements of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any cluster. It does not affect other scenarios.
    Nothing,
    /// Faults of single pods, on our own cluster. It does not affect other scenarios.
    PodFaults,
    /// Exclusive use of our own cluster.
    Everything,
}

/// A scenario to run.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Its requirements.
    pub needs: Needs,
    /// The function that runs it.
    pub play: fn(Rc<Stage>) -> LocalBoxFuture<'static, Result<()>>,
}

/// Runs all of them and returns the names of those that failed, each with the reason. Scenarios that this cluster does
/// not support are skipped with a message.
pub async fn run_all(stage: &Rc<Stage>, entries: Vec<Entry>) -> Vec<String> {
    let own = stage.provider.faults().is_some();
    let (possible, skipped): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| own || entry.needs == Needs::Nothing);
    for entry in &skipped {
        progress(&format!("scenario {} ... skipped: it needs its own cluster", entry.name));
    }
    let (alone, together): (Vec<_>, Vec<_>) =
        possible.into_iter().partition(|entry| entry.needs == Needs::Everything);
    let play = |entry: Entry| play(Rc::clone(stage), entry);
    stage.together.begin();
    // No async closure for `filter_map`: Rust 1.95 sometimes ends with an internal error when it is compiled again.
    let played: Vec<_> = stream::iter(together).map(play).buffer_unordered(SIDE_BY_SIDE).collect().await;
    let mut failed: Vec<String> = played.into_iter().flatten().collect();
    if let Err(error) = minute_of_quiet(stage).await {
        progress(&format!("the minute of quiet ... FAILED\n    {error:#}"));
        failed.push(format!("the minute of quiet: {error:#}"));
    }
    if !alone.is_empty() {
        progress("scenarios with exclusive use of the cluster, one after the other:");
    }
    for entry in alone {
        failed.extend(play(entry).await);
    }
    failed
}

/// Runs one; returns its name and the reason if it failed.
async fn play(stage: Rc<Stage>, entry: Entry) -> Option<String> {
    let start = Moment::now();
    let played = time::timeout(LONGEST + faults_last(), (entry.play)(stage)).await;
    let seconds = Moment::now().since(start).as_secs_f64();
    match played.unwrap_or_else(|_| Err(anyhow!("it took longer than {} s", LONGEST.as_secs()))) {
        Ok(()) => {
            progress(&format!("scenario {} ... ok ({seconds:.1} s)", entry.name));
            None
        }
        Err(error) => {
            progress(&format!("scenario {} ... FAILED ({seconds:.1} s)\n    {error:#}", entry.name));
            Some(format!("{}: {error:#}", entry.name))
        }
    }
}
