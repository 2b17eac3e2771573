//! The node of the active pod is cut off from the network while its pod keeps running; the owner of the group is
//! elsewhere. Another pod gets the label, and when the node is back, its pod is a standby.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload},
};

use crate::ownership::owner_elsewhere;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "node-cut-off", Workload::default(), async |s| {
        let before = s.elect().await?;
        owner_elsewhere(s, &before.node).await?;
        let node = s.another_node(&before.node)?;
        let client = s.call_from(&node).await?;
        let beside_zombie = s.call_from(&before.node).await?;
        for client in [&client, &beside_zombie] {
            client.reaches(&before.pod).await?;
        }
        let at = Moment::from(s.stage.own()?.cut_off(&before.node).await?);
        let after = s.failover("cut-off", &before, at, Some(&client), &["Silent"]).await?;
        // The old pod is still running, and clients that are cut off with it still reach it. Labels cannot prevent
        // that; fencing can.
        let replaced = Moment::now();
        let alive =
            |calls: &leadergroup_e2e::client::Calls| calls.from(replaced).answered_by(&before.pod) > 20;
        beside_zombie.until("answers of the cut-off pod on its own node", STARTED, alive).await?;
        s.stage.own()?.reconnect(&before.node).await?;
        let settled = s.settled(STARTED).await?;
        ensure!(settled == after, "the node's return moved the active role from {after:?} to {settled:?}");
        let reached = |calls: &leadergroup_e2e::client::Calls| calls.answered_by(&after.pod) > 20;
        beside_zombie.until("answers of the new active on the node that is back", STARTED, reached).await?;
        s.stage.operator.ready(STARTED).await?;
        s.hang_up(client).await?;
        s.hang_up_cut_off(beside_zombie).await?;
        Ok(())
    })
    .await
}
