//! A scheduler and a consumer: shell programs whose work is lines and files on a volume.

use std::{collections::BTreeSet, fs, path::Path, rc::Rc};

use anyhow::{Context, Result, ensure};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, eventually};

use super::Example;
use crate::change::Change;

const SCHEDULER: &str = include_str!("../../../../examples/more/agent-scheduler.yaml");
const CONSUMER: &str = include_str!("../../../../examples/more/agent-consumer.yaml");
/// Jobs for each active pod.
const JOBS: usize = 20;

pub(crate) async fn scheduler(stage: &Rc<Stage>) -> Result<()> {
    let mut example = Example::new("scheduler", SCHEDULER)?;
    // A slot each second in place of a minute.
    example.set("EVERY", "1")?;
    Scenario::play(stage, "example-scheduler", example.workload(), async |s| {
        let runs = example.folder.join("runs");
        example
            .changes(s, &Change::EXAMPLES, async |_, active| {
                eventually("a job of this term", STARTED, async || {
                    let found = terms(&runs)?;
                    ensure!(found.contains(&active.token), "jobs of the terms {found:?}");
                    Ok(())
                })
                .await
            })
            .await?;
        let count = fs::read_to_string(&runs)?.lines().count();
        s.note(format!("{count} jobs ran in {} terms, each once", terms(&runs)?.len()));
        Ok(())
    })
    .await
}

/// The terms that jobs ran in. Fails if one ran twice, or one of an earlier term after one of a later term.
fn terms(runs: &Path) -> Result<BTreeSet<i64>> {
    let (mut latest, mut terms) = ((0_i64, 0_i64), BTreeSet::new());
    for line in fs::read_to_string(runs)?.lines() {
        let mut fields = line.split(' ').map(str::parse::<i64>);
        let (slot, token) = (fields.next().context("no slot")??, fields.next().context("no token")??);
        ensure!(slot > latest.0 && token >= latest.1, "{line} follows {latest:?}");
        latest = (slot, token);
        terms.insert(token);
    }
    Ok(terms)
}

pub(crate) async fn consumer(stage: &Rc<Stage>) -> Result<()> {
    let example = Example::new("consumer", CONSUMER)?;
    Scenario::play(stage, "example-consumer", example.workload(), async |s| {
        let (todo, done) = (example.folder.join("todo"), example.folder.join("done"));
        fs::create_dir_all(&todo)?;
        let mut jobs = 0;
        example
            .changes(s, &Change::EXAMPLES, async |_, active| {
                for _ in 0..JOBS {
                    jobs += 1;
                    // A job appears with its whole text.
                    let new = example.folder.join("new");
                    fs::write(&new, format!("job {jobs}"))?;
                    fs::rename(&new, todo.join(jobs.to_string()))?;
                }
                eventually("the results", STARTED, async || {
                    let count = fs::read_dir(&done)?.count();
                    ensure!(count == jobs, "{count} of {jobs} jobs are done");
                    let last = fs::read_to_string(done.join(jobs.to_string()))?;
                    ensure!(last.contains(&format!(" {} ", active.token)), "the last one is {last}");
                    Ok(())
                })
                .await
            })
            .await?;
        let begun = fs::read_to_string(example.folder.join("begun"))?;
        let names: BTreeSet<_> = begun.lines().filter_map(|line| line.split(' ').next()).collect();
        ensure!((begun.lines().count(), names.len()) == (jobs, jobs), "jobs were taken twice: {begun}");
        s.note(format!("{jobs} jobs were taken, each once"));
        Ok(())
    })
    .await
}
