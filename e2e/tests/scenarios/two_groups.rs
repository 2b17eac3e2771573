//! Two groups select the same pods: they belong to the older one, and the younger one reports this and promotes no
//! pod until the older one is deleted.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, PostParams};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually};

const YOUNGER: &str = "younger";

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "two-groups", Workload::default(), async |s| {
        let before = s.elect().await?;
        let client = s.call_from(&before.node).await?;
        // The creation time of objects has a resolution of one second.
        let created = s.group().await?.metadata.creation_timestamp.context("no time of creation")?.0;
        let next_second = created + Duration::from_secs(1);
        eventually("the next second", STARTED, async || {
            ensure!(jiff::Timestamp::now() >= next_second, "not yet");
            Ok(())
        })
        .await?;
        s.groups().create(&PostParams::default(), &s.workload.group(YOUNGER)?).await?;
        let revision = s.revision().await?;
        eventually("the younger group to say so", STARTED, async || {
            let (ready, reason, message) = s.condition(YOUNGER, "Ready").await?;
            ensure!(
                ready == "False" && reason == "SelectedByOtherGroup",
                "Ready is {ready} ({reason}): {message}"
            );
            ensure!(message.contains(&s.workload.name), "{message:?} does not name the older group");
            let (stalled, ..) = s.condition(YOUNGER, "Stalled").await?;
            ensure!(stalled == "True", "Stalled is {stalled}: a user must act");
            Ok(())
        })
        .await?;
        ensure!(s.settled(STARTED).await? == before, "the older group lost its pod to the younger one");
        s.no_role_changed(revision).await?;
        s.groups().delete(&s.workload.name, &DeleteParams::default()).await?;
        eventually("the younger group to take the pods", STARTED, async || {
            let (ready, reason, message) = s.condition(YOUNGER, "Ready").await?;
            ensure!(ready == "True", "Ready is {ready} ({reason}): {message}");
            Ok(())
        })
        .await?;
        s.other_promotions = 2..=2;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
