//! PostgreSQL is restarted, and later stopped for a minute during which the operator is restarted, too: no failover
//! happens, labels stay, log and group report that the database is unavailable, and nothing crashes. Afterwards
//! failover works.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, throughout};

use crate::trouble::{says, store_reachable};

const AWAY: Duration = Duration::from_mins(1);
const REMEDY: &str = "check the URL (database.url or database.urlFile), that the server runs";

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "postgres-away", Workload::default(), async |s| {
        let active = s.elect().await?;
        let revision = s.revision().await?;
        let client = s.call_from(&active.node).await?;
        let database = s.stage.own()?.database();
        database.restart().await?;
        store_reachable(s, "True", "").await?;
        s.no_role_changed(revision).await.context("PostgreSQL was restarted")?;

        database.stop().await?;
        let stopped = Instant::now();
        let story = async {
            store_reachable(s, "False", REMEDY).await?;
            let restarted = s.stage.operator.replace().await?;
            let left = AWAY.saturating_sub(stopped.elapsed());
            let unchanged = throughout("the active pod as it was", left, async || {
                let now = s.active().await?;
                ensure!(now == active, "{active:?} became {now:?}");
                Ok(())
            });
            let (unchanged, said) = futures::join!(unchanged, says(s, &restarted, REMEDY));
            said?;
            unchanged?;
            ensure!(
                s.stage.operator.restarts().await? == 0,
                "the operator crashes while the database is away"
            );
            store_reachable(s, "False", REMEDY).await
        };
        let told = story.await;
        database.start().await?;
        told?;
        store_reachable(s, "True", "").await?;
        s.no_role_changed(revision).await.context("PostgreSQL was stopped for a minute")?;
        ensure!(s.settled(STARTED).await? == active, "the active pod changed");
        let calls = s.hang_up(client).await?;
        ensure!(calls.pods() == [active.pod.as_str()], "answered by {:?}", calls.pods());
        s.stage.operator.ready(STARTED).await?;
        s.still_fails_over("the outage").await?;
        Ok(())
    })
    .await
}
