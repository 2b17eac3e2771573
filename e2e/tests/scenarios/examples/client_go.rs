//! A program that elects its leader with client-go is moved to the agent, in the steps of docs/agent.md.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    coordination::v1::Lease,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use leadergroup_e2e::{
    journal::{Journal, Process},
    running::{Run, gaps},
    scenario::{STARTED, Scenario, Stage, eventually},
};

use super::Example;
use crate::change::Change;

const BEFORE: &str = include_str!("../../../../examples/more/client-go-before.yaml");
const AFTER: &str = include_str!("../../../../examples/more/client-go-after.yaml");
const NAME: &str = "leader";

pub(crate) async fn moved(stage: &Rc<Stage>) -> Result<()> {
    let journal = Journal::new("example-client-go")?;
    let before = Example::on_volume(NAME, BEFORE, journal.folder().to_path_buf())?;
    let after = Example::on_volume(NAME, AFTER, journal.folder().to_path_buf())?;
    let told = Scenario::play(stage, "example-client-go", before.workload(), async |s| {
        eventually("the former program to write", STARTED, async || {
            let wrote = journal.processes()?.iter().any(|it| it.token == 0 && it.times.len() > 1);
            ensure!(wrote, "it has written nothing");
            Ok(())
        })
        .await?;

        s.stage.apply(&s.namespace, &after.manifests(&["LeaderGroup"])).await?;
        s.scale(0).await?;
        eventually("the end of the former pods", STARTED, async || {
            let left = s.pods().list(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "{left} pods are there");
            Ok(())
        })
        .await?;
        s.stage.apply(&s.namespace, &after.manifests(&[])).await?;
        s.workload = after.workload();
        deleted(s).await?;

        after.changes(s, &Change::EXAMPLES, async |_, active| journal.written(active).await).await?;
        let gaps = gaps(runs(&journal)?)?;
        let gap = gaps.first().context("the program was not moved")?;
        s.note(format!("without a program for {:.2} s while it was moved", gap.as_secs_f64()));
        Ok(())
    });
    told.await.and(journal.remove())
}

/// What the journal says. The former programs count as one: client-go lets two of them run at a time for a moment.
fn runs(journal: &Journal) -> Result<Vec<Run>> {
    let run = |it: Process| {
        let (begun, seen) = (*it.times.first()?, *it.times.last()?);
        let pod = if it.token == 0 { "a former pod".to_owned() } else { it.pod };
        Some(Run { pod, begun, seen })
    };
    Ok(journal.processes()?.into_iter().filter_map(run).collect())
}

/// What only client-go needs.
async fn deleted(s: &Scenario) -> Result<()> {
    let (kube, now) = (|| s.stage.kube.clone(), DeleteParams::default());
    let name = "leader-election";
    Api::<RoleBinding>::namespaced(kube(), &s.namespace)
        .delete(name, &now)
        .await
        .context("the RoleBinding")?;
    Api::<Role>::namespaced(kube(), &s.namespace).delete(name, &now).await.context("the Role")?;
    Api::<Lease>::namespaced(kube(), &s.namespace).delete(NAME, &now).await.context("the Lease")?;
    Ok(())
}
