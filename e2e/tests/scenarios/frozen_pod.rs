//! The active pod hangs: all its processes are frozen, with their connections open. Later it resumes.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload},
};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "frozen-pod", Workload::default(), async |s| {
        let before = s.elect().await?;
        let node = s.another_node(&before.node)?;
        let client = s.call_from(&node).await?;
        client.reaches(&before.pod).await?;
        let at = Moment::from(s.stage.own()?.freeze_pod(&before.uid).await?);
        // The kubelet's own probe also fails, after three attempts; which comes first depends on its start.
        let after = s.failover("frozen", &before, at, Some(&client), &["Silent", "PodNotReady"]).await;
        s.stage.own()?.thaw_pod(&before.uid)?;
        let after = after?;
        let settled = s.settled(STARTED).await?;
        ensure!(settled == after, "its return moved the active role from {after:?} to {settled:?}");
        let answered = client.calls().answered_by(&after.pod);
        client.until("more answers", STARTED, |calls| calls.answered_by(&after.pod) > answered + 50).await?;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
