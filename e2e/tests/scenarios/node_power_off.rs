//! The node of the active pod loses power: silence is the evidence, long before Kubernetes notices. The node returns.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload},
};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "node-power-off", Workload::default(), async |s| {
        let before = s.elect().await?;
        let node = s.another_node(&before.node)?;
        let client = s.call_from(&node).await?;
        client.until("answers of the active", STARTED, |calls| calls.answered_by(&before.pod) > 50).await?;
        let at = Moment::from(s.stage.own()?.power_off(&before.node).await?);
        let after = s.failover("power-off", &before, at, Some(&client), &["Silent"]).await?;
        s.stage.own()?.power_on(&before.node).await?;
        let settled = s.settled(STARTED).await?;
        ensure!(settled == after, "the node's return moved the active role from {after:?} to {settled:?}");
        s.stage.own()?.heal(STARTED).await?;
        s.stage.operator.ready(STARTED).await?;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
