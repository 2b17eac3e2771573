//! The node of the active pod and of the owner of the group loses power: silence is the evidence, long before
//! Kubernetes notices. The node returns.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload},
};

use crate::ownership::{move_ownership, node_of, node_with_a_replica, owner, was_lost};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "node-power-off", Workload::default(), async |s| {
        let off = node_with_a_replica(s).await?;
        let mut before = s.elect().await?;
        if before.node != off {
            let pods = s.pods_ready().await?;
            let there = pods.into_iter().find(|pod| node_of(pod).as_ref() == Some(&off));
            let there = there.and_then(|pod| pod.metadata.name).context("no pod on the replica's node")?;
            let at = Moment::now();
            s.request_switchover(&s.workload.name, "there", Some(&there)).await?;
            s.failover("requested", &before, at, None, &["Switchover"]).await?;
            before = s.settled(STARTED).await?;
        }
        ensure!(before.node == off, "{} is active on {}, not on {off}", before.pod, before.node);
        let node = s.another_node(&before.node)?;
        let client = s.call_from(&node).await?;
        client.reaches(&before.pod).await?;
        // The last step: the group does not stay with an owner on its active pod's node.
        move_ownership(s, &off).await?;
        let (session, _) = owner(s).await?;
        let at = Moment::from(s.stage.own()?.power_off(&before.node).await?);
        // The owner dies with the pod. Its session has a ttl of 4 s and a beat a second, so another replica owns the
        // group by the time that the pod's silence is complete: no longer deadline.
        let after = s.failover("power-off", &before, at, Some(&client), &["Silent"]).await?;
        // The owner had not given the group away before.
        was_lost(s, &session).await?;
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
