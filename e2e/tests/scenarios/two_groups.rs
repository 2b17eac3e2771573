//! Two groups with a Service each, and pods that both select: neither makes one of them active, and both say so. A
//! group that fails over takes a pod that only it selects. And a second group for the same pods gets them when the
//! first one is deleted.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use leadergroup_e2e::{
    history::Deadline,
    moment::Moment,
    scenario::{STARTED, Scenario, Stage, Workload, eventually},
};
use serde_json::{Value, json};

const OTHER: &str = "other";
const YOUNGER: &str = "younger";
/// The label by which the other group and its Service select pods.
const TEAM: &str = "team";

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "two-groups", Workload::default(), async |s| {
        let before = s.elect().await?;
        let client = s.call_from(&before.node).await?;
        start_other(s).await?;
        let other = active_of(s, OTHER, &BTreeSet::new()).await?;

        // The standbys of the older group get the label of the younger one.
        let shared = shared(s, &before.pod).await?;
        label(s, &shared, Some(OTHER)).await?;
        both_say_so(s, [&s.workload.name, OTHER], &shared).await?;
        let (active, of_other) = (s.active().await?, active_of(s, OTHER, &shared).await?);
        ensure!((&active, &of_other) == (&before, &other), "an active pod lost its label");
        // The older one waits for a new pod that only it selects; the younger one has one.
        let of_other = uid(s, &other).await?;
        s.fails_for([before.uid.clone(), of_other.clone()], &["PodDeleted"]);
        let silence = s.workload.group("x")?.spec.health.silence_timeout.0;
        let due = Deadline::usual(&of_other, Moment::now(), "PodDeleted", silence, Duration::ZERO);
        for pod in [&other, &before.pod] {
            s.pods().delete(pod, &DeleteParams::default()).await?;
        }
        for (group, former) in [(&*s.workload.name, &before.pod), (OTHER, &other)] {
            let mut not = shared.clone();
            not.insert(former.clone());
            active_of(s, group, &not).await?;
        }
        ensure!(s.are_replaced(vec![due]).await? == 1, "{other} was not active when it was deleted");
        label(s, &shared, None).await?;
        let settled = s.settled(STARTED).await?;
        is_ready(s, OTHER).await?;

        younger_group_takes_over(s, &settled.pod).await?;
        s.other_promotions = 5..=5;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}

/// Starts pods of their own for another group, its Service, and the group.
async fn start_other(s: &Scenario) -> Result<()> {
    let workload = Workload { name: OTHER.into(), ..Workload::default() };
    let mut deployment = serde_json::to_value(workload.deployment()?)?;
    for labels in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
        deployment.pointer_mut(labels).context("no labels")?[TEAM] = OTHER.into();
    }
    let mut service = serde_json::to_value(workload.service()?)?;
    let selector = service.pointer_mut("/spec/selector").and_then(Value::as_object_mut);
    let selector = selector.context("no selector")?;
    selector.remove("app");
    selector.insert(TEAM.into(), OTHER.into());
    s.deployments().create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
    s.services().create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    create_group(s, OTHER, &json!({ TEAM: OTHER })).await?;
    is_ready(s, OTHER).await
}

/// Creates a group that is younger than all others. The creation time of objects has a resolution of one second.
async fn create_group(s: &Scenario, name: &str, labels: &Value) -> Result<()> {
    let created = s.group().await?.metadata.creation_timestamp.context("no time of creation")?.0;
    let next_second = created + Duration::from_secs(1);
    eventually("the next second", STARTED, async || {
        ensure!(jiff::Timestamp::now() >= next_second, "not yet");
        Ok(())
    })
    .await?;
    let mut group = s.workload.group(name)?;
    group.spec.selector = serde_json::from_value(json!({ "matchLabels": labels }))?;
    s.groups().create(&PostParams::default(), &group).await?;
    Ok(())
}

/// A second group for the pods of the scenario's group gets them when that one is deleted.
async fn younger_group_takes_over(s: &Scenario, active: &str) -> Result<()> {
    create_group(s, YOUNGER, &json!({ "app": s.workload.name })).await?;
    let revision = s.revision().await?;
    let pods = s.members().await?.iter().map(ResourceExt::name_any).collect();
    both_say_so(s, [&s.workload.name, YOUNGER], &pods).await?;
    ensure!(s.active().await?.pod == active, "the older group lost its pod to the younger one");
    s.no_role_changed(revision).await?;
    s.groups().delete(&s.workload.name, &DeleteParams::default()).await?;
    is_ready(s, YOUNGER).await
}

async fn is_ready(s: &Scenario, group: &str) -> Result<()> {
    eventually(&format!("{group} to be ready"), STARTED, async || {
        let (ready, reason, message) = s.condition(group, "Ready").await?;
        ensure!(ready == "True", "Ready is {ready} ({reason}): {message}");
        Ok(())
    })
    .await
}

/// Waits until both groups say that they do not make pods of the other one active.
async fn both_say_so(s: &Scenario, groups: [&str; 2], pods: &BTreeSet<String>) -> Result<()> {
    for (group, other) in [(groups[0], groups[1]), (groups[1], groups[0])] {
        eventually(&format!("{group} to say so"), STARTED, async || {
            let (ready, reason, message) = s.condition(group, "Ready").await?;
            ensure!(
                ready == "False" && reason == "SelectedByOtherGroup",
                "Ready is {ready} ({reason}): {message}"
            );
            for name in pods.iter().map(String::as_str).chain([other]) {
                ensure!(message.contains(name), "{message:?} does not name {name}");
            }
            let (stalled, ..) = s.condition(group, "Stalled").await?;
            ensure!(stalled == "True", "Stalled is {stalled}: a user must act");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Waits until a group has an active pod that is none of these.
async fn active_of(s: &Scenario, group: &str, not: &BTreeSet<String>) -> Result<String> {
    eventually(&format!("{group} to have an active pod"), STARTED, async || {
        let status = s.groups().get(group).await?.status.unwrap_or_default();
        let active = status.active.context("no pod is active")?.pod;
        ensure!(!not.contains(&active), "{active} is active");
        Ok(active)
    })
    .await
}

async fn uid(s: &Scenario, pod: &str) -> Result<String> {
    s.pods().get(pod).await?.uid().context("a pod without UID")
}

/// The pods of the scenario's group but for the active one.
async fn shared(s: &Scenario, active: &str) -> Result<BTreeSet<String>> {
    let pods: Api<Pod> = s.pods();
    let of_group = ListParams::default().labels(&format!("app={}", s.workload.name));
    let pods = pods.list(&of_group).await?.items.into_iter().map(|pod| pod.name_any());
    Ok(pods.filter(|pod| pod != active).collect())
}

/// Sets or removes the label of the other group.
async fn label(s: &Scenario, pods: &BTreeSet<String>, team: Option<&str>) -> Result<()> {
    let change = Patch::Merge(json!({ "metadata": { "labels": { TEAM: team } } }));
    for pod in pods {
        s.pods().patch(pod, &PatchParams::default(), &change).await?;
    }
    Ok(())
}
