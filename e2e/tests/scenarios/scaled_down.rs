//! The Deployment is scaled down to one pod: the active one stays, although the youngest pods are deleted first.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload, eventually},
};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "scaled-down", Workload::default(), async |s| {
        let first = s.elect().await?;
        let client = s.call_from(&first.node).await?;
        let known = names(s).await?;
        s.scale(4).await?;
        s.settled(STARTED).await?;
        let all = names(s).await?;
        let youngest = all.iter().find(|name| !known.contains(name)).context("no pod is new")?;
        let at = Moment::now();
        s.request_switchover(&s.workload.name, "youngest", Some(youngest)).await?;
        let active = s.failover("requested", &first, at, Some(&client), &["Switchover"]).await?;
        ensure!(active.pod == *youngest, "{} is active, not {youngest}", active.pod);
        s.scale(1).await?;
        eventually("one pod", STARTED, async || {
            let left = names(s).await?;
            ensure!(left.len() == 1, "{left:?} are left");
            Ok(())
        })
        .await?;
        let left = s.settled(STARTED).await?;
        ensure!(left == active, "{} is active with token {}", left.pod, left.token);
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}

async fn names(s: &Scenario) -> Result<Vec<String>> {
    Ok(s.members().await?.into_iter().filter_map(|pod| pod.metadata.name).collect())
}
