//! Agents run a program in the pods of a group. Whatever happens to its pod, no two programs run at the same moment.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use anyhow::{Context, Result};
use kube::api::{DeleteParams, PostParams};
use leadergroup_e2e::{
    journal::{Journal, allow_reads},
    moment::Moment,
    scenario::{Active, CRASHED, DELETED, STARTED, Scenario, Stage},
};

const NAME: &str = "worker";
/// The deadline of a failover, after the evidence: another two seconds, and the start of the program.
const REPLACED: Duration = Duration::from_secs(9);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let journal = Journal::new("exactly-one")?;
    let workload = journal.workload(NAME, 3)?;
    let told = Scenario::play(stage, "exactly-one", workload, async |s| {
        allow_reads(s).await?;
        let group = s.workload.group(NAME)?;
        s.groups().create(&PostParams::default(), &group).await.context("creating the LeaderGroup")?;
        s.pods_ready().await?;
        let mut active = s.settled(STARTED).await?;
        journal.written(&active).await?;

        for request in ["one", "two", "three"] {
            let at = Moment::now();
            s.request_switchover(NAME, request, None).await?;
            let after =
                s.failover_within(request, &active, at, None, &["Switchover"], Some(REPLACED)).await?;
            journal.written(&after).await?;
            active = s.settled(STARTED).await?;
        }

        let at = Moment::now();
        crash(s, &active).await?;
        let after = s.failover_within("crashed", &active, at, None, &CRASHED, Some(REPLACED)).await?;
        journal.written(&after).await?;
        active = s.settled(STARTED).await?;

        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default()).await?;
        let after = s.failover_within("deleted", &active, at, None, &DELETED, Some(REPLACED)).await?;
        journal.written(&after).await?;
        active = s.settled(STARTED).await?;

        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default().grace_period(0)).await?;
        let after =
            s.failover_within("deleted by force", &active, at, None, &DELETED, Some(REPLACED)).await?;
        journal.written(&after).await?;
        active = s.settled(STARTED).await?;

        let at = Moment::from(s.stage.own()?.cut_off(&active.node).await?);
        let within = s.workload.group(NAME)?.spec.lock.ttl.0 + REPLACED;
        let after = s.failover_within("cut off", &active, at, None, &["Silent"], Some(within)).await;
        let after = match after {
            Ok(after) => journal.written(&after).await.map(|()| after),
            failed => failed,
        };
        s.stage.own()?.reconnect(&active.node).await?;
        after?;
        s.settled(STARTED).await?;
        s.stage.operator.ready(STARTED).await?;

        s.note(journal.terms(&BTreeSet::new())?.to_string());
        Ok(())
    })
    .await;
    told.and(journal.remove())
}

/// Ends the program, as if it had crashed.
async fn crash(s: &Scenario, active: &Active) -> Result<()> {
    let script = "kill -9 $(cat /tmp/program)";
    let args = ["exec", "-n", &s.namespace, &active.pod, "--", "/bin/sh", "-c", script];
    match s.stage.run_kubectl(&args).await {
        Err(killed) if killed.to_string().contains("exit code 137") => Ok(()),
        answer => answer.map(drop),
    }
}
