//! I8: at rest the operator writes nothing.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::time::{self, Instant};

use super::{Scenario, Stage, target_folder};
use crate::{command::progress, history::operator_writes};

/// How long groups are watched when their scenarios have ended. It finds everything that is written with a
/// shorter period.
const MINUTE: Duration = Duration::from_mins(1);
/// When the minute begins after the last scenario. A minor change of a status is reported up to 10 s later.
const REPORTED: Duration = Duration::from_secs(12);
/// How often it is looked for writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// I8: a minute of quiet for the groups of all kept namespaces, which are deleted afterwards.
pub(super) async fn minute_of_quiet(stage: &Rc<Stage>) -> Result<()> {
    let kept = stage.together.end();
    if kept.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = kept.iter().map(String::as_str).collect();
    let quiet = are_quiet(stage, &names).await;
    // The next scenarios are not to be measured beside this.
    stage.delete_namespaces(&names).await?;
    quiet
}

impl Scenario {
    /// I8: watches the groups of this scenario alone for the minute in which the others are watched together.
    pub async fn minute_of_quiet(&self) -> Result<()> {
        are_quiet(&self.stage, &[&self.namespace]).await
    }
}

/// Watches the groups of these namespaces for a minute, in which the operator must write nothing.
async fn are_quiet(stage: &Stage, names: &[&str]) -> Result<()> {
    let Some(recorder) = &stage.recorder else { return Ok(()) };
    progress(&format!("a minute of quiet for the groups in {}", names.join(", ")));
    time::sleep(REPORTED).await;
    let revision = recorder.revision().await?;
    let quiet = stays_quiet(MINUTE, async || {
        let history = recorder.objects().await?.of_namespaces(names);
        let writes = operator_writes(&history, revision);
        if !writes.is_empty() {
            history.dump(&target_folder()?.join("e2e-dump/quiet.jsonl"))?;
        }
        Ok(writes)
    });
    quiet.await.with_context(|| format!("a minute of quiet (I8) of the groups in {names:?}"))
}

/// Fails as soon as there are writes within this time.
pub(super) async fn stays_quiet(
    lasting: Duration,
    mut writes: impl AsyncFnMut() -> Result<Vec<String>>,
) -> Result<()> {
    let start = Instant::now();
    let mut looked = Duration::ZERO;
    while let Some(at) = next_look(looked, lasting) {
        time::sleep_until(start + at).await;
        // What is written from now on is of the next look, if there is one.
        looked = start.elapsed();
        let found = writes().await?;
        ensure!(found.is_empty(), "within {} s the operator wrote {found:?}", lasting.as_secs());
    }
    Ok(())
}

/// When it is looked for writes again, from the beginning; none if the last look was at the end.
fn next_look(looked: Duration, lasting: Duration) -> Option<Duration> {
    (looked < lasting).then(|| lasting.min(looked + LOOK_EVERY))
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    #[tokio::test]
    async fn a_writer_is_noticed_at_the_last_look_at_the_latest() {
        // More than one look.
        let lasting = LOOK_EVERY + LOOK_EVERY / 2;
        let start = Instant::now();
        let late = async || {
            let is_late = start.elapsed() >= lasting;
            Ok(is_late.then(|| "LeaderGroup ns/web".to_owned()).into_iter().collect())
        };
        assert!(stays_quiet(lasting, late).await.is_err());
        assert!(stays_quiet(Duration::ZERO, async || Ok(Vec::new())).await.is_ok());
    }

    #[test]
    fn a_first_write_after_40_s_is_within_the_minute_and_one_after_61_s_is_not() {
        let looks = || iter::successors(Some(Duration::ZERO), |looked| next_look(*looked, MINUTE));
        let is_noticed = |write| looks().any(|look| look >= Duration::from_secs(write));
        assert!(is_noticed(40));
        assert!(!is_noticed(61));
    }
}
