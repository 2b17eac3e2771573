//! The active pod is deleted, gracefully and then by force: a standby takes over, and the replacement becomes a
//! standby.

use std::rc::Rc;

use anyhow::Result;
use kube::api::DeleteParams;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{DELETED, STARTED, Scenario, Stage, Workload},
};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "active-pod-deleted", Workload::default(), story).await
}

pub(crate) async fn story(s: &mut Scenario) -> Result<()> {
    let mut active = s.elect().await?;
    let node = s.another_node(&active.node)?;
    let client = s.call_from(&node).await?;
    for (fault, how) in
        [("deleted", DeleteParams::default()), ("deleted by force", DeleteParams::default().grace_period(0))]
    {
        client.reaches(&active.pod).await?;
        let at = Moment::now();
        s.pods().delete(&active.pod, &how).await?;
        s.failover(fault, &active, at, Some(&client), &DELETED).await?;
        active = s.settled(STARTED).await?;
    }
    s.hang_up(client).await?;
    Ok(())
}
