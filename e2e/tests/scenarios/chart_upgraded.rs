//! `helm upgrade` to another version with a changed value, while a group runs on the bundled PostgreSQL: the operator
//! is replaced, the database is not, and the active pod stays. So does `helm rollback`. Then the database's pod is
//! deleted and comes back with its data.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{Active, DELETED, STARTED, Scenario, Stage, Workload, eventually},
};

use crate::{
    bundled,
    trouble::{said, says_again, store_reachable},
};

/// A version of the chart that differs in nothing but its number.
const NEWER: &str = "99.9.9";
/// What a replica logs after an outage of the database.
const AGAIN: &str = "the lock's database answers again";
/// The deadline of a failover right after that: a replica may have to take the group over first, for which it waits for
/// the ttl of a session and a heartbeat.
const AFTER_OUTAGE: Duration = Duration::from_secs(8);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let story = Scenario::play(stage, "chart-upgraded", Workload::default(), async |s| {
        let active = s.elect().await?;
        let operator = s.stage.operator.clone();
        let (before, database) = (operator.ready(STARTED).await?, bundled::database(&operator).await?);
        let revision = s.revision().await?;
        let client = s.call_from(&active.node).await?;
        client.reaches(&active.pod).await?;

        let mut values = bundled::values();
        values["settings"]["logFilter"] = "debug".into();
        operator.install_version(NEWER, &values).await?;
        bundled::replaced(&operator, &before).await?;
        unaffected(s, &active, &database, revision).await.context("the release was upgraded")?;

        let upgraded = operator.ready(STARTED).await?;
        operator.roll_back().await?;
        bundled::replaced(&operator, &upgraded).await?;
        unaffected(s, &active, &database, revision).await.context("the release was rolled back")?;

        let replicas: Vec<String> = operator.ready(STARTED).await?.into_keys().collect();
        let before = said(s, &replicas, AGAIN).await?;
        operator.pods().delete(bundled::DATABASE, &DeleteParams::default()).await?;
        let (old, _) = database;
        let (_, restarts) = eventually("the database's new pod", STARTED, async || {
            let now = bundled::database(&operator).await?;
            ensure!(now.0 != old, "it is the old one");
            Ok(now)
        })
        .await?;
        ensure!(restarts == 0, "the database's new pod failed {restarts} times");
        says_again(s, &before, AGAIN).await?;
        store_reachable(s, "True", "").await?;
        s.no_role_changed(revision).await.context("the database's pod was replaced")?;
        let calls = s.hang_up(client).await?;
        ensure!(calls.pods() == [active.pod.as_str()], "answered by {:?}", calls.pods());
        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default()).await?;
        let fault = "deleted after the upgrade and the rollback";
        s.failover_within(fault, &active, at, None, &DELETED, Some(AFTER_OUTAGE)).await?;
        let after = s.settled(STARTED).await?;
        // They jump by a million. A candidate that answers late on a busy machine costs one more token.
        ensure!(
            after.token < active.token + 1_000,
            "the database lost data: {} follows {}",
            after.token,
            active.token
        );
        bundled::record_terms(&s.stage).await
    });
    Box::pin(bundled::with(stage, story)).await
}

/// The database was not restarted, and the active pod has kept its role since this revision.
async fn unaffected(s: &Scenario, active: &Active, database: &(String, i32), revision: i64) -> Result<()> {
    let now = bundled::database(&s.stage.operator).await?;
    ensure!(now == *database, "the database was restarted");
    s.no_role_changed(revision).await?;
    ensure!(s.settled(STARTED).await? == *active, "the active pod changed");
    Ok(())
}
