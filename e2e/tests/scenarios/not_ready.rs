//! Groups that cannot be served: one whose pods never become ready, and one whose selector matches no pod. Both say so,
//! no pod is labelled active, and the operator is as quiet as beside groups that are served.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use kube::api::PostParams;
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually};
use serde_json::json;

const UNFIT: (&str, &str) = ("web", "NoEligiblePod");
const EMPTY: (&str, &str) = ("empty", "NoPods");

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let mut deployment = Workload { replicas: 2, ..Workload::default() }.deployment()?;
    let pod = deployment.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).context("no pod")?;
    // The program answers, but not this.
    let path = json!({ "httpGet": { "path": "/ready", "port": "http" }, "periodSeconds": 2 });
    pod.containers[0].readiness_probe = serde_json::from_value(path)?;
    let workload = Workload { replicas: 2, deployment: Some(Box::new(deployment)), ..Workload::default() };
    Scenario::play(stage, "not-ready", workload, async |s| {
        s.not_ready = vec![UNFIT, EMPTY];
        s.other_promotions = 0..=0;
        let client = s.call_from(&s.another_node("")?).await?;
        s.groups().create(&PostParams::default(), &s.workload.group(UNFIT.0)?).await?;
        let nothing = Workload { name: EMPTY.0.into(), ..Workload::default() };
        s.groups().create(&PostParams::default(), &nothing.group(EMPTY.0)?).await?;
        for (name, wanted) in [UNFIT, EMPTY] {
            eventually("the group to say why it is not Ready", STARTED, async || {
                let (ready, reason, message) = s.condition(name, "Ready").await?;
                ensure!(ready == "False" && reason == wanted, "Ready is {ready} ({reason}): {message}");
                Ok(())
            })
            .await?;
        }
        client.until("calls", STARTED, |calls| calls.len() > 50).await?;
        let calls = s.hang_up(client).await?;
        ensure!(calls.pods().is_empty(), "answered by {:?}", calls.pods());
        Ok(())
    })
    .await
}
