//! `helm rollback` after an upgrade, while a group runs on the bundled PostgreSQL: the operator is replaced, the
//! database is not, and the active pod stays.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload};

use crate::bundled;

/// A version of the chart that differs in nothing but its number.
const NEWER: &str = "99.9.9";

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let story = async {
        let operator = stage.operator.clone();
        operator.install_version(NEWER, &bundled::values()).await?;
        Scenario::play(stage, "chart-rolled-back", Workload::default(), async |s| {
            let active = s.elect().await?;
            let (before, database) = (operator.ready(STARTED).await?, bundled::database(&operator).await?);
            let revision = s.revision().await?;
            let client = s.call_from(&active.node).await?;
            client.reaches(&active.pod).await?;
            operator.roll_back().await?;
            bundled::replaced(&operator, &before).await?;
            ensure!(bundled::database(&operator).await? == database, "the rollback restarted the database");
            s.no_role_changed(revision).await.context("the release was rolled back")?;
            ensure!(s.settled(STARTED).await? == active, "the active pod changed");
            let calls = s.hang_up(client).await?;
            ensure!(calls.pods() == [active.pod.as_str()], "answered by {:?}", calls.pods());
            s.still_fails_over("the rollback").await?;
            bundled::record_terms(s).await
        })
        .await
    };
    Box::pin(bundled::with(stage, story)).await
}
