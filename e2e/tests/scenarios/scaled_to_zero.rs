//! The Deployment is scaled to zero and back: the group reports this, and continues with a larger token.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "scaled-to-zero", Workload::default(), async |s| {
        let before = s.elect().await?;
        let client = s.call_from(&before.node).await?;
        s.scale(0).await?;
        eventually("the group to say that it has no pods", STARTED, async || {
            let (ready, reason, message) = s.condition(&s.workload.name, "Ready").await?;
            ensure!(
                (ready.as_str(), reason.as_str()) == ("False", "NoPods"),
                "Ready is {ready} ({reason}): {message}"
            );
            let status = s.group().await?.status.unwrap_or_default();
            ensure!(
                status.active.is_none() && status.replicas == 0,
                "the status still has {:?}",
                status.active
            );
            Ok(())
        })
        .await?;
        s.scale(3).await?;
        let after = s.settled(STARTED).await?;
        ensure!(after.token > before.token, "token {} follows {}", after.token, before.token);
        // The first promotion, the one after scaling up, and up to two of pods that are deleted a moment later.
        s.other_promotions = 2..=4;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
