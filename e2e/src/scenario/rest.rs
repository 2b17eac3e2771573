//! The end of a scenario: it is as expected and comes to rest, and its history and its clients' calls are checked.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::quiet::stays_quiet;
use super::service::{ROUTED, ROUTED_ON_A_BUSY_MACHINE, Service};
use super::{Line, STARTED, Scenario, eventually};
use crate::{
    history::{History, check, not_at_rest, operator_writes},
    moment::Moment,
};

/// How long nothing must be written when a scenario ends: longer than the intervals at which standbys are stamped and
/// pods are probed. A shared minute follows for the scenarios that run side by side.
const QUIET: Duration = Duration::from_secs(5);
/// How long reports may follow the last change: conditions, Events, stamps that are repeated.
const REPORTED: Duration = Duration::from_secs(20);

impl Scenario {
    /// I6, I7, I8: each group is Ready, unless it is one of [`Scenario::not_ready`], all pods get their labels, and
    /// then nothing is written.
    pub(super) async fn rests(&self) -> Result<()> {
        eventually("the expected end", STARTED, async || {
            let wrong = not_at_rest(&self.objects().await?, &self.not_ready);
            ensure!(wrong.is_empty(), "{wrong:?}");
            Ok(())
        })
        .await?;
        if self.stage.recorder.is_none() {
            // A watch of the API server shows only from time to time up to which revision it has seen everything.
            return Ok(());
        }
        eventually("the operator to write nothing (I8)", REPORTED, async || {
            let revision = self.revision().await?;
            stays_quiet(QUIET, async || Ok(operator_writes(&self.objects().await?, revision))).await
        })
        .await
    }

    /// How long the rules of a Service may take to follow the label.
    pub(super) fn routed(&self) -> Duration {
        if self.stage.together.is_going_on() { ROUTED_ON_A_BUSY_MACHINE } else { ROUTED }
    }

    /// Checks the whole history, the clients' calls and the number of changes of holder, and reports.
    pub(super) async fn check(&mut self) -> Result<()> {
        let history = History {
            faults: Some(self.faults.clone()),
            deadlines: self.deadlines.clone(),
            ..self.history().await?
        };
        let checked = check(&history);
        let dump = self.dump_folder()?.join("history.jsonl");
        checked.ok_or_dump(&history, &dump)?;
        // Clocks of other machines cannot be compared.
        if self.stage.recorder.is_some() {
            let (app, routing) = (&self.workload.name, self.routing());
            let mut service = Service::read(&history, app, &routing, self.routed(), Moment::now());
            self.rebuilt.iter().for_each(|(from, until)| service.rebuilt(*from, *until));
            let wrong: Vec<String> = self.calls.iter().flat_map(|calls| service.wrong(calls)).collect();
            if !wrong.is_empty() {
                history.dump(&dump)?;
                bail!("what the clients saw: {wrong:?}; the history is in {}", dump.display());
            }
        }
        let (measured, others) = (self.changes.len(), &self.other_promotions);
        let promotions: Vec<_> =
            checked.promotions.iter().filter(|promotion| promotion.revision > self.first_revision).collect();
        if !promotions.len().checked_sub(measured).is_some_and(|rest| others.contains(&rest)) {
            let list: Vec<_> = promotions.iter().map(|p| (p.revision, p.token, p.pod.as_str())).collect();
            bail!(
                "{measured} changes of holder were measured, and beside them {others:?} promotions may be; \
                 these were made (revision, token, pod): {list:?}"
            );
        }
        self.stage.report.add(Line {
            scenario: self.name.clone(),
            seconds: Moment::now().since(self.started).as_secs_f64(),
            revisions: checked.revisions,
            changes: self.changes.clone(),
            clients: self.clients.clone(),
            notes: self.notes.clone(),
        });
        Ok(())
    }
}
