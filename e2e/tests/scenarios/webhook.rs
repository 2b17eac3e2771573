//! An admission webhook denies, fails or hangs for the next pod, for the active pod, and for all pods. Meanwhile a
//! group in another namespace fails over again and again.

use std::{cell::Cell, net::IpAddr, rc::Rc, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use leadergroup::api::SwitchoverResult;
use leadergroup_e2e::{
    history::ACTS,
    moment::Moment,
    network::HOST_ADDRESS,
    scenario::{Active, CRASHED, DELETED, STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::{Value, json};

use crate::webhook_server::{Answer, Scope, Webhook};

/// The time limit of the webhook. A write waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The usual time for a deleted pod: the scenario's own call, and the change.
const USUAL: Duration = Duration::from_secs(1).saturating_add(ACTS);
/// The promotion waits for the webhook, and is refused then. The next one does not wait.
const PROMOTION_HANGS: Duration = TIMEOUT.saturating_add(USUAL);
/// The strip waits for the webhook, and then the promotion.
const BOTH_HANG: Duration = TIMEOUT.saturating_add(PROMOTION_HANGS);
/// A refused strip is repeated after a pause of up to 5 s.
const STRIPPED_LATE: Duration = Duration::from_secs(5).saturating_add(ACTS);

/// So many refusals show that the strip is repeated for as long as it takes.
const REFUSALS: usize = 6;

/// The rounds of the group in the other namespace: from the deletion of the active pod until another one is active.
#[derive(Default)]
struct Rounds {
    begun: Cell<u32>,
    ended: Cell<u32>,
    /// No further round is needed.
    enough: Cell<bool>,
}

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let rounds = Rounds::default();
    let failing = Box::pin(Scenario::play(stage, "webhook", Workload::default(), async |s| {
        let told = failing(s, &rounds).await;
        rounds.enough.set(true);
        told
    }));
    let bystander = Box::pin(Scenario::play(stage, "webhook-bystander", Workload::default(), async |s| {
        bystander(s, &rounds).await
    }));
    let (failing, bystander) = futures::join!(failing, bystander);
    // If this one fails, the other waits for it in vain.
    match (bystander, failing) {
        (Err(bystander), Err(failing)) => {
            Err(anyhow!("the bystander: {bystander:#}; the other group: {failing:#}"))
        }
        (bystander, failing) => bystander.and(failing),
    }
}

async fn failing(s: &mut Scenario, rounds: &Rounds) -> Result<()> {
    let first = s.elect().await?;
    next_pod_fails(s, &first).await?;
    let active = s.settled(STARTED).await?;
    all_pods_hang(s, &active, rounds).await?;
    let active = s.settled(STARTED).await?;
    next_pod_hangs(s, &active).await?;
    let active = s.settled(STARTED).await?;
    active_pod_fails(s, &active).await
}

async fn bystander(s: &mut Scenario, rounds: &Rounds) -> Result<()> {
    let mut active = s.elect().await?;
    while !rounds.enough.get() {
        let round = rounds.begun.get() + 1;
        rounds.begun.set(round);
        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default()).await?;
        let fault = format!("deletion {round} in another namespace");
        s.failover(&fault, &active, at, None, &DELETED).await?;
        rounds.ended.set(round);
        active = s.settled(STARTED).await?;
    }
    Ok(())
}

/// A webhook for the pods with these labels.
async fn webhook(s: &Scenario, pods: &Value, failure_policy: &str, probe: &str) -> Result<Webhook> {
    let address: IpAddr = HOST_ADDRESS.parse()?;
    let timeout_seconds = u32::try_from(TIMEOUT.as_secs())?;
    let scope = Scope { namespace: &s.namespace, pods, mutates: false, failure_policy, timeout_seconds };
    Webhook::start(s.stage.kube.clone(), address, &scope, probe).await
}

/// Gives a pod a label that a webhook can select it by.
async fn mark(s: &Scenario, pod: &str) -> Result<Value> {
    let label = json!({ "webhook": pod });
    let patch = Patch::Merge(json!({ "metadata": { "labels": label } }));
    s.pods().patch(pod, &PatchParams::default(), &patch).await?;
    Ok(label)
}

/// Makes a pod other than the active one the first choice of the election. Returns it and a label of it.
async fn prefer_another(s: &Scenario, active: &Active) -> Result<(String, Value)> {
    let names = s.members().await?.into_iter().filter_map(|pod| pod.metadata.name);
    let next = names.into_iter().find(|name| *name != active.pod).context("there is no other pod")?;
    let label = mark(s, &next).await?;
    let election = json!({ "priorities": [{ "weight": 10, "podLabels": label }] });
    let patch = Patch::Merge(json!({ "spec": { "election": election } }));
    s.groups().patch(&s.workload.name, &PatchParams::default(), &patch).await?;
    let settled = s.settled(STARTED).await?;
    ensure!(settled == *active, "{} followed", settled.pod);
    // A pod that was refused comes last, whatever its priority.
    eventually("the pod not to be refused", STARTED, async || {
        let (_, _, message) = s.condition(&s.workload.name, "Redundant").await?;
        ensure!(!message.contains(&next), "the condition says {message}");
        Ok(())
    })
    .await?;
    Ok((next, label))
}

/// A switchover to the pod is refused, whether the webhook denies it or fails, and the active pod stays. If it is
/// deleted, another pod follows at once.
async fn next_pod_fails(s: &mut Scenario, active: &Active) -> Result<()> {
    let (next, label) = prefer_another(s, active).await?;
    let webhook = webhook(s, &label, "Fail", &next).await?;
    for (answer, request) in
        [(Answer::Deny(403), "to a pod that is denied"), (Answer::Fail, "to a pod that fails")]
    {
        webhook.set(answer);
        let asked = webhook.asked();
        s.request_switchover(&s.workload.name, request, Some(&next)).await?;
        eventually("the switchover to be refused", STARTED, async || {
            ensure!(s.active().await? == *active, "{} is no longer active", active.pod);
            let last = s.group().await?.status.unwrap_or_default().switchover;
            let is_refused = last
                .as_ref()
                .is_some_and(|last| last.request == request && last.result == SwitchoverResult::Refused);
            ensure!(is_refused, "{last:?}");
            let (_, _, message) = s.condition(&s.workload.name, "Redundant").await?;
            ensure!(message.contains(&next) && message.contains("webhook"), "the condition says {message}");
            Ok(())
        })
        .await?;
        ensure!(webhook.asked() > asked, "{request}: no webhook was asked");
    }
    let after = deleted(s, active, "deleted, the next pod's webhook fails", None).await?;
    ensure!(after.pod != next, "the refused pod is active");
    webhook.lift(&next).await
}

/// The API server lets each write pass when the webhook's time is up. The group in the other namespace does not wait.
async fn all_pods_hang(s: &mut Scenario, active: &Active, rounds: &Rounds) -> Result<()> {
    let webhook = webhook(s, &json!({ "app": s.workload.name }), "Ignore", &active.pod).await?;
    webhook.set(Answer::Hang);
    let (begun, at) = (rounds.begun.get(), Moment::now());
    let after = deleted(s, active, "deleted, all webhooks hang for 5 s", Some(BOTH_HANG)).await?;
    ensure!(webhook.asked() > 0, "no webhook was asked");
    ensure!(Moment::now().since(at) >= TIMEOUT, "the change did not wait for the webhook");
    eventually("a whole round in the other namespace", STARTED, async || {
        let ended = rounds.ended.get();
        ensure!(ended > begun, "round {begun} was the last to begin before, {ended} the last to end");
        Ok(())
    })
    .await?;
    // The webhook denies what hangs while it is lifted.
    s.settled(STARTED).await?;
    webhook.lift(&after.pod).await
}

/// The API server refuses to write the pod when the webhook's time is up.
async fn next_pod_hangs(s: &mut Scenario, active: &Active) -> Result<()> {
    let (next, label) = prefer_another(s, active).await?;
    let webhook = webhook(s, &label, "Fail", &next).await?;
    webhook.set(Answer::Hang);
    let fault = "deleted, the next pod's webhook hangs for 5 s";
    let after = deleted(s, active, fault, Some(PROMOTION_HANGS)).await?;
    ensure!(after.pod != next, "the refused pod is active");
    // A stamp is written after the change. Only a promotion has a term.
    ensure!(after.token > active.token + 1, "{next} was not the first choice: {after:?} follows {active:?}");
    ensure!(webhook.asked() > 0, "no webhook was asked");
    webhook.lift(&next).await
}

/// No other pod becomes active before the failed one has lost its label. The condition says so.
async fn active_pod_fails(s: &mut Scenario, active: &Active) -> Result<()> {
    let label = mark(s, &active.pod).await?;
    let webhook = webhook(s, &label, "Fail", &active.pod).await?;
    webhook.set(Answer::Fail);
    let at = Moment::now();
    s.order(&active.pod, "crash").await?;
    eventually("refused strips, and the condition to name the pod", STARTED, async || {
        ensure!(webhook.asked() >= REFUSALS, "the webhook was asked {} times", webhook.asked());
        let labels = s.pods().get(&active.pod).await?.metadata.labels.unwrap_or_default();
        let role = labels.get(s.workload.role_label).map(String::as_str);
        ensure!(role == Some("active"), "{} is {role:?}", active.pod);
        let (status, _, message) = s.condition(&s.workload.name, "Active").await?;
        let says = message.contains(&active.pod) && message.contains("the active label");
        ensure!(status == "False" && says, "Active is {status}: {message}");
        Ok(())
    })
    .await?;
    webhook.lift(&active.pod).await?;
    let within = Moment::now().since(at) + STRIPPED_LATE;
    s.failover_within("crashed, its webhook failed", active, at, None, &CRASHED, Some(within)).await?;
    Ok(())
}

async fn deleted(s: &mut Scenario, active: &Active, fault: &str, within: Option<Duration>) -> Result<Active> {
    let at = Moment::now();
    s.pods().delete(&active.pod, &DeleteParams::default()).await?;
    s.failover_within(fault, active, at, None, &DELETED, within).await
}
