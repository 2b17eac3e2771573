//! Plays scenarios, those that disturb nobody side by side, the others one after the other.

use std::{rc::Rc, time::Duration};

use anyhow::{Result, anyhow};
use futures::{StreamExt, future::LocalBoxFuture, stream};
use tokio::time;

use super::Stage;
use crate::{command::progress, moment::Moment};

/// How many scenarios are played side by side. On two cores more would only make each slower.
const SIDE_BY_SIDE: usize = 5;
/// No scenario takes this long unless it hangs. A single one ends itself before, with a look at why.
const LONGEST: Duration = Duration::from_mins(6);

/// What a scenario needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any cluster. It disturbs nobody.
    Nothing,
    /// Faults of single pods: a cluster of our own. It disturbs nobody.
    PodFaults,
    /// The cluster for itself: a cluster of our own, and nobody else on it meanwhile.
    Everything,
}

/// A scenario to play.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// Plays it.
    pub play: fn(Rc<Stage>) -> LocalBoxFuture<'static, Result<()>>,
}

/// Plays all of them and answers the names of those that failed. What this cluster cannot do is skipped, and said so.
pub async fn run_all(stage: &Rc<Stage>, entries: Vec<Entry>) -> Vec<&'static str> {
    let own = stage.provider.faults().is_some();
    let (possible, skipped): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| own || entry.needs == Needs::Nothing);
    for entry in &skipped {
        progress(&format!("scenario {} ... skipped: it needs a cluster of our own", entry.name));
    }
    let (alone, together): (Vec<_>, Vec<_>) =
        possible.into_iter().partition(|entry| entry.needs == Needs::Everything);
    let play = |entry: Entry| play(Rc::clone(stage), entry);
    let mut failed: Vec<_> = stream::iter(together)
        .map(play)
        .buffer_unordered(SIDE_BY_SIDE)
        .filter_map(async |name| name)
        .collect()
        .await;
    if !alone.is_empty() {
        progress("scenarios that have the cluster to themselves, one after the other:");
    }
    for entry in alone {
        failed.extend(play(entry).await);
    }
    failed
}

/// Plays one; answers its name if it failed.
async fn play(stage: Rc<Stage>, entry: Entry) -> Option<&'static str> {
    let start = Moment::now();
    let played = time::timeout(LONGEST, (entry.play)(stage)).await;
    let seconds = Moment::now().since(start).as_secs_f64();
    match played.unwrap_or_else(|_| Err(anyhow!("it took longer than {} s", LONGEST.as_secs()))) {
        Ok(()) => {
            progress(&format!("scenario {} ... ok ({seconds:.1} s)", entry.name));
            None
        }
        Err(error) => {
            progress(&format!("scenario {} ... FAILED ({seconds:.1} s)\n    {error:#}", entry.name));
            Some(entry.name)
        }
    }
}
