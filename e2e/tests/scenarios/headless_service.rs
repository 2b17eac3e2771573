//! A headless Service without a selector, beside a usual one of the same group: its name resolves to the active pod.

use std::rc::Rc;

use anyhow::{Result, ensure};
use kube::api::PostParams;
use leadergroup::api::GROUP_LABEL;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{Active, STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::json;

const SERVICE: &str = "web-headless";
const PORT: u16 = 8080;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "headless-service", Workload { managed: true, ..Workload::default() }, async |s| {
        let service = serde_json::from_value(json!({
            "metadata": { "name": SERVICE, "labels": { GROUP_LABEL: s.workload.name } },
            "spec": { "clusterIP": "None", "ports": [{ "port": PORT }] },
        }))?;
        s.services().create(&PostParams::default(), &service).await?;
        let before = s.elect().await?;
        answers(s, &before).await?;
        let at = Moment::now();
        s.request_switchover(&s.workload.name, "one", None).await?;
        let after = s.failover("requested", &before, at, None, &["Switchover"]).await?;
        answers(s, &after).await?;
        s.settled(STARTED).await?;
        Ok(())
    })
    .await
}

/// Waits until a pod that calls the Service by its name reaches the active pod. The DNS server may be late.
async fn answers(s: &Scenario, active: &Active) -> Result<()> {
    let url = format!("http://{SERVICE}:{PORT}/");
    let fetch = ["timeout", "5", "wget", "-q", "-O", "-", &url];
    let exec = ["exec", "--namespace", &s.namespace, &active.pod, "--"];
    eventually("the active pod to answer by the Service's name", STARTED, async || {
        let answer = s.stage.run_kubectl(&[&exec[..], &fetch].concat()).await?;
        ensure!(answer.trim() == active.pod, "{} answers", answer.trim());
        Ok(())
    })
    .await
}
