//! A preferred node gets the role as soon as its pod is fit. When that pod crashes, the role goes elsewhere, and does
//! not go back at once although the pod works again.

use std::{rc::Rc, time::Duration};

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{CRASHED, STARTED, Scenario, Stage, Workload},
};
use serde_json::json;

/// The `failbackDelay` of one second, which begins when the preferred pod is seen to be fit, and the usual 2 s.
const PREFERRED: Duration = Duration::from_secs(4);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "failback", Workload::default(), async |s| {
        let first = s.elect().await?;
        let client = s.call_from(&first.node).await?;
        client.reaches(&first.pod).await?;
        let preferred = s.another_node(&first.node)?;
        let election = json!({
            "priorities": [{ "weight": 10, "nodeLabels": { "kubernetes.io/hostname": preferred } }],
            "failback": "WhenReady",
            "failbackDelay": "1s",
        });
        let at = Moment::now();
        let patch = Patch::Merge(json!({ "spec": { "election": election } }));
        s.groups().patch(&s.workload.name, &PatchParams::default(), &patch).await?;
        let second =
            s.failover_within("preferred", &first, at, Some(&client), &["Failback"], Some(PREFERRED)).await?;
        ensure!(second.node == preferred, "{} is on {}", second.pod, second.node);
        let settled = s.settled(STARTED).await?;
        ensure!(settled == second, "{} followed", settled.pod);

        let at = Moment::now();
        s.order(&second.pod, "crash").await?;
        let third = s.failover("crash", &second, at, Some(&client), &CRASHED).await?;
        // The crashed pod is eligible again, and another one is preferred to it for a minute. At rest nothing is
        // written for longer than the failbackDelay.
        let settled = s.settled(STARTED).await?;
        ensure!(settled == third, "{} followed", settled.pod);
        // This machine may be slow, and that minute over before the scenario ends.
        let patch = Patch::Merge(json!({ "spec": { "election": { "failback": "Never" } } }));
        s.groups().patch(&s.workload.name, &PatchParams::default(), &patch).await?;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
