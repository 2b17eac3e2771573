//! Agents run a program in the pods of a group. Whatever happens to its pod, no two programs run at the same moment.
//!
//! `LEADERGROUP_PROGRAM_CHANGES` is the number of changes. A longer cycle of changes is repeated then.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use anyhow::{Context, Result};
use kube::api::PostParams;
use leadergroup_e2e::{
    journal::{Journal, allow_reads},
    scenario::{Active, STARTED, Scenario, Stage, program_changes},
};

use crate::change::Change;
#[allow(clippy::enum_glob_use, reason = "each is used by its name below")]
use crate::change::Change::*;

const NAME: &str = "worker";
/// The deadline of a failover, after the evidence: another two seconds, the lease, and the start of the program.
const REPLACED: Duration = Duration::from_secs(9);
const SHORT: [Change; 7] =
    [Switchover, Switchover, Switchover, CrashOfProgram, Deletion, DeletionByForce, CutOff];
const LONG: [Change; 9] = [
    Switchover,
    CrashOfProgram,
    DeletionByForce,
    Freeze,
    Deletion,
    Switchover,
    Crash,
    DeletionByForce,
    CutOff,
];

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let changes: Vec<Change> = match program_changes()? {
        Some(count) => LONG.iter().copied().cycle().take(usize::try_from(count)?).collect(),
        None => SHORT.to_vec(),
    };
    let journal = Journal::new("exactly-one")?;
    let workload = journal.workload(NAME, 3)?;
    let told = Scenario::play(stage, "exactly-one", workload, async |s| {
        allow_reads(s).await?;
        let group = s.workload.group(NAME)?;
        s.groups().create(&PostParams::default(), &group).await.context("creating the LeaderGroup")?;
        s.pods_ready().await?;
        let mut active = s.settled(STARTED).await?;
        journal.written(&active).await?;
        let mut stood_still = BTreeSet::new();
        for (number, change) in changes.iter().enumerate() {
            if change.hangs() {
                stood_still.insert(active.pod.clone());
            }
            replaced(s, &journal, *change, number, &active).await?;
            active = s.settled(STARTED).await?;
            // A container that ended several times is started again after a pause.
            s.pods_ready().await?;
        }
        s.note(journal.terms(&stood_still)?.to_string());
        Ok(())
    })
    .await;
    told.and(journal.remove())
}

/// Waits until the program of another pod runs, and undoes the fault.
async fn replaced(
    s: &mut Scenario,
    journal: &Journal,
    change: Change,
    number: usize,
    before: &Active,
) -> Result<()> {
    let at = change.begin(s, before, &number.to_string()).await?;
    let silence =
        if change.hangs() { s.workload.group(NAME)?.spec.health.silence_timeout.0 } else { Duration::ZERO };
    let within = Some(silence + REPLACED);
    let replaced = async {
        let after =
            s.failover_within(&change.to_string(), before, at, None, change.reasons(), within).await?;
        journal.written(&after).await
    };
    let replaced = replaced.await;
    change.undo(s, before).await?;
    replaced?;
    if change.hangs() {
        s.stage.operator.ready(STARTED).await?;
        s.kubelet_hears(before).await?;
    }
    Ok(())
}
