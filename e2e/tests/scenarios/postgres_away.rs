//! PostgreSQL is restarted, and later stopped for a minute: no failover, labels stay, the group says that the database
//! is away. Afterwards failover works.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually, throughout};

const AWAY: Duration = Duration::from_mins(1);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "postgres-away", Workload::default(), async |s| {
        let active = s.elect().await?;
        let revision = s.revision().await?;
        let client = s.call_from(&active.node).await?;
        let database = s.stage.own()?.database();
        database.restart().await?;
        reachable(s, "True").await?;
        s.no_role_changed(revision).await.context("PostgreSQL was restarted")?;

        database.stop().await?;
        let away = async {
            reachable(s, "False").await?;
            throughout("the active pod as it was", AWAY, async || {
                let now = s.active().await?;
                ensure!(now == active, "{active:?} became {now:?}");
                Ok(())
            })
            .await
        };
        let away = away.await;
        database.start().await?;
        away?;
        reachable(s, "True").await?;
        s.no_role_changed(revision).await.context("PostgreSQL was stopped for a minute")?;
        ensure!(s.settled(STARTED).await? == active, "the active pod changed");
        let calls = client.stop().await?;
        s.note(format!("the client: {calls}"));
        ensure!(calls.pods() == [active.pod.as_str()], "answered by {:?}", calls.pods());
        s.still_fails_over("the outage").await?;
        Ok(())
    })
    .await
}

async fn reachable(s: &Scenario, wanted: &str) -> Result<()> {
    eventually(&format!("LockStoreReachable to be {wanted}"), STARTED, async || {
        let (status, reason, message) = s.condition(&s.workload.name, "LockStoreReachable").await?;
        ensure!(status == wanted, "it is {status} ({reason}): {message}");
        Ok(())
    })
    .await
}
