//! An admission webhook fails or hangs for the next pod, for the active pod, and for all pods. Meanwhile a group in
//! another namespace fails over again and again.

use std::{net::IpAddr, rc::Rc};

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use leadergroup::api::SwitchoverResult;
use leadergroup_e2e::{
    moment::Moment,
    network::HOST_ADDRESS,
    scenario::{Active, DELETED, STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::{Value, json};

use crate::webhook_server::{Answer, Scope, Webhook};

/// The time limit of the webhook. A write waits for it, and a change of holder has two writes to pods.
const TIMEOUT_SECONDS: u32 = 5;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let failing = Box::pin(Scenario::play(stage, "webhook", Workload::default(), async |s| {
        let first = s.elect().await?;
        next_pod_fails(s, &first).await?;
        let active = s.settled(STARTED).await?;
        all_pods_hang(s, &active).await?;
        let active = s.settled(STARTED).await?;
        next_pod_hangs(s, &active).await?;
        let active = s.settled(STARTED).await?;
        active_pod_fails(s, &active).await
    }));
    let bystander = Box::pin(Scenario::play(stage, "webhook-bystander", Workload::default(), async |s| {
        let mut active = s.elect().await?;
        for round in 1..=4 {
            let at = Moment::now();
            s.pods().delete(&active.pod, &DeleteParams::default()).await?;
            let fault = format!("deletion {round} in another namespace");
            s.failover(&fault, &active, at, None, &DELETED).await?;
            active = s.settled(STARTED).await?;
        }
        Ok(())
    }));
    let (failing, bystander) = futures::join!(failing, bystander);
    failing.and(bystander)
}

/// A webhook for the pods with these labels.
async fn webhook(s: &Scenario, pods: &Value, failure_policy: &str, probe: &str) -> Result<Webhook> {
    let address: IpAddr = HOST_ADDRESS.parse()?;
    let scope = Scope { namespace: &s.namespace, pods, failure_policy, timeout_seconds: TIMEOUT_SECONDS };
    Ok(Webhook::start(s.stage.kube.clone(), address, &scope, probe).await)
}

/// Another pod than the active one, with a label that a webhook can select it by.
async fn marked(s: &Scenario, pod: Option<&str>, active: &Active) -> Result<String> {
    let names = s.members().await?.into_iter().filter_map(|pod| pod.metadata.name);
    let name = names.into_iter().find(|name| pod.map_or(*name != active.pod, |pod| pod == name));
    let name = name.context("there is no such pod")?;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "webhook": name } } }));
    s.pods().patch(&name, &PatchParams::default(), &label).await?;
    Ok(name)
}

/// A switchover to the pod is refused, and the active pod stays. If it is deleted, another pod follows at once.
async fn next_pod_fails(s: &mut Scenario, active: &Active) -> Result<()> {
    let next = marked(s, None, active).await?;
    let webhook = webhook(s, &json!({ "webhook": next }), "Fail", &next).await?;
    webhook.set(Answer::Fail);
    s.request_switchover(&s.workload.name, "to the refused pod", Some(&next)).await?;
    eventually("the switchover to be refused", STARTED, async || {
        ensure!(s.active().await? == *active, "{} is no longer active", active.pod);
        let last = s.group().await?.status.unwrap_or_default().switchover;
        ensure!(last.as_ref().is_some_and(|last| last.result == SwitchoverResult::Refused), "{last:?}");
        Ok(())
    })
    .await?;
    let (_, _, message) = s.condition(&s.workload.name, "Redundant").await?;
    ensure!(message.contains(&next) && message.contains("webhook"), "the condition says {message}");
    let after = deleted(s, active, "deleted, the next pod's webhook fails").await?;
    ensure!(after.pod != next, "the refused pod is active");
    webhook.lift(&next).await;
    Ok(())
}

/// The API server lets each write pass when the webhook's time is up.
async fn all_pods_hang(s: &mut Scenario, active: &Active) -> Result<()> {
    let webhook = webhook(s, &json!({ "app": s.workload.name }), "Ignore", &active.pod).await?;
    webhook.set(Answer::Hang);
    let after = deleted(s, active, "deleted, all webhooks hang for 5 s").await?;
    webhook.lift(&after.pod).await;
    Ok(())
}

/// The API server refuses to write the pod when the webhook's time is up.
async fn next_pod_hangs(s: &mut Scenario, active: &Active) -> Result<()> {
    let next = marked(s, None, active).await?;
    let webhook = webhook(s, &json!({ "webhook": next }), "Fail", &next).await?;
    webhook.set(Answer::Hang);
    let after = deleted(s, active, "deleted, the next pod's webhook hangs for 5 s").await?;
    ensure!(after.pod != next, "the refused pod is active");
    webhook.lift(&next).await;
    Ok(())
}

/// No other pod becomes active before the failed one has lost its label. The condition says so.
async fn active_pod_fails(s: &mut Scenario, active: &Active) -> Result<()> {
    marked(s, Some(&active.pod), active).await?;
    let webhook = webhook(s, &json!({ "webhook": active.pod }), "Fail", &active.pod).await?;
    webhook.set(Answer::Fail);
    s.fails([active.uid.clone()]);
    s.order(&active.pod, "crash").await?;
    eventually("the condition to name the pod", STARTED, async || {
        let (status, _, message) = s.condition(&s.workload.name, "Active").await?;
        let says = message.contains(&format!("{} still has the active label", active.pod));
        ensure!(status == "False" && says, "Active is {status}: {message}");
        Ok(())
    })
    .await?;
    let at = Moment::now();
    webhook.lift(&active.pod).await;
    let reasons = ["ContainerTerminated", "ContainerRestarted", "ProbeRefused", "PodNotReady"];
    s.failover("crashed, its webhook failed", active, at, None, &reasons).await?;
    Ok(())
}

async fn deleted(s: &mut Scenario, active: &Active, fault: &str) -> Result<Active> {
    let at = Moment::now();
    s.pods().delete(&active.pod, &DeleteParams::default()).await?;
    s.failover(fault, active, at, None, &DELETED).await
}
