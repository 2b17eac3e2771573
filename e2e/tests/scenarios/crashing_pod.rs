//! The active pod's process ends with an error, repeatedly; the kubelet restarts it, and it becomes a standby.

use std::rc::Rc;

use anyhow::Result;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{CRASHED, STARTED, Scenario, Stage, Workload},
};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "crashing-pod", Workload::default(), async |s| {
        let mut active = s.elect().await?;
        let node = s.another_node(&active.node)?;
        let client = s.call_from(&node).await?;
        for round in 1..=3 {
            client.reaches(&active.pod).await?;
            let at = Moment::now();
            s.order(&active.pod, "crash").await?;
            s.failover(&format!("crash {round}"), &active, at, Some(&client), &CRASHED).await?;
            active = s.settled(STARTED).await?;
        }
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
