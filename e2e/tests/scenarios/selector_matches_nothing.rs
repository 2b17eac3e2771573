//! A group whose selector matches no pod reports this with a remedy, and starts by itself when there are pods.

use std::rc::Rc;

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually};
use serde_json::json;

use crate::trouble::somebody_says;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let workload = Workload { replicas: 0, ..Workload::default() };
    Scenario::play(stage, "selector-matches-nothing", workload, async |s| {
        let client = s.call_from(&s.another_node("")?).await?;
        s.groups().create(&PostParams::default(), &s.workload.group("web")?).await?;
        eventually("the group to say that it has no pods", STARTED, async || {
            let (ready, reason, message) = s.condition("web", "Ready").await?;
            ensure!(ready == "False" && reason == "NoPods", "Ready is {ready} ({reason}): {message}");
            ensure!(message.contains("selector"), "{message:?} does not say what to look at");
            Ok(())
        })
        .await?;
        somebody_says(s, &[&format!("{}/web", s.namespace), "NoPods", "compare it with the labels"]).await?;
        s.workload.replicas = 2;
        let patch = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
        s.deployments().patch("web", &PatchParams::default(), &patch).await?;
        let active = s.settled(STARTED).await?;
        client.reaches(&active.pod).await?;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
