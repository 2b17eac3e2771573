//! The example of hooks: the pods are told their roles before the label changes, again after a restart, and a pod that
//! refuses with `onFailure: Abort` does not get, or does not lose, the role.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::{apps::v1::Deployment, events::v1::Event};
use kube::{
    Api,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::{LeaderGroup, SwitchoverResult};
use leadergroup_e2e::{
    images,
    moment::Moment,
    scenario::{Active, CRASHED, DELETED, STARTED, Scenario, Stage, TAKEOVER, TOLD, Workload, eventually},
};
use serde::Deserialize;
use serde_json::{Value, json};

const EXAMPLE: &str = include_str!("../../../examples/more/hooks.yaml");
const NAME: &str = "switchboard";
/// The change of holder in which the test holds a request: that takes two commands in pods.
const HELD: Duration = Duration::from_secs(20);

/// Puts a script before the example's own. It logs a request that arrives, waits while the file `held` is there, and
/// refuses it if the file `refuse-ROLE` is there.
const BEFORE: &str = r#"cd /www/cgi-bin && mv change-role real && cat >change-role <<'SCRIPT' && chmod +x change-role
#!/bin/sh
change=$(head -c "$CONTENT_LENGTH")
echo "arrived $change" >&2
while [ -e /www/held ]; do sleep 0.05; done
role=$(echo "$change" | sed 's/.*"role":"\([a-z]*\)".*/\1/')
if [ -e "/www/refuse-$role" ]; then printf 'Status: 503 Busy\r\n\r\n'; exit; fi
printf '%s' "$change" | /www/cgi-bin/real
SCRIPT
"#;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let deployment = Deployment::deserialize(object("Deployment")?)?;
    let workload =
        Workload { name: NAME.into(), deployment: Some(Box::new(deployment)), ..Workload::default() };
    Scenario::play(stage, "hooks", workload, async |s| {
        // Beside the measured changes: the first one, two that were refused, and one after a restart, if the pod
        // counted as lost meanwhile.
        s.other_promotions = 3..=4;
        let first = is_told_before_its_label(s).await?;
        let second = former_is_told_first(s, &first).await?;
        let (third, refused) = is_passed_over(s, &second).await?;
        let third = stays_if_it_cannot_be_demoted(s, &third, &refused).await?;
        let at = Moment::now();
        s.pods().delete(&third.pod, &DeleteParams::default()).await?;
        let fourth = s.failover("deleted", &third, at, None, &DELETED).await?;
        is_told(s, &fourth.pod, "active", fourth.token).await?;
        is_told_again_after_a_restart(s).await
    })
    .await
}

/// An object of the example, with the image of this cluster.
fn object(kind: &str) -> Result<Value> {
    let text = EXAMPLE.replace("busybox:1.37", images::BUSYBOX);
    let objects = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
    let objects = objects.collect::<Result<Vec<_>, _>>().context("the example")?;
    objects.into_iter().find(|object| object["kind"] == kind).context("the example has no such object")
}

async fn is_told_before_its_label(s: &Scenario) -> Result<Active> {
    let names: Vec<_> = s.pods_ready().await?.into_iter().filter_map(|pod| pod.metadata.name).collect();
    let prepare = format!("{BEFORE}touch /www/held");
    try_join_all(names.iter().map(|pod| run(s, pod, &prepare))).await?;
    let mut group = object("LeaderGroup")?;
    // The test holds requests for longer than a change should wait.
    for hook in ["demote", "promote"] {
        group["spec"]["hooks"][hook]["timeout"] = "30s".into();
    }
    let group = LeaderGroup::deserialize(group)?;
    s.groups().create(&PostParams::default(), &group).await.context("creating the LeaderGroup")?;
    let told = eventually("a pod to be told that it is active", TOLD, async || {
        for pod in &names {
            if arrived(s, pod).await?.iter().any(|change| change["role"] == "active") {
                return Ok(pod.clone());
            }
        }
        anyhow::bail!("none was")
    })
    .await?;
    no_pod_is_active(s).await?;
    eventually("the condition to name the hook", TOLD, async || {
        let (_, _, message) = s.condition(NAME, "Active").await?;
        ensure!(message.contains("waits for the answer to spec.hooks.promote"), "it says: {message}");
        Ok(())
    })
    .await?;
    no_pod_is_active(s).await?;
    try_join_all(names.iter().map(|pod| run(s, pod, "rm /www/held"))).await?;
    let first = s.settled(TAKEOVER).await?;
    ensure!(first.pod == told, "{} is active, and {told} was told so", first.pod);
    is_told(s, &first.pod, "active", first.token).await?;
    Ok(first)
}

/// In a switchover the former pod has lost the label and is told so. Meanwhile the next one is neither told that it is
/// active, nor labelled.
async fn former_is_told_first(s: &mut Scenario, first: &Active) -> Result<Active> {
    run(s, &first.pod, "touch /www/held").await?;
    let next = standbys(s, first).await?.into_iter().next().context("no standby")?;
    let at = Moment::now();
    s.request_switchover(NAME, "one", Some(&next)).await?;
    let token = eventually("the former pod to be told that it is a standby", TOLD, async || {
        let changes = arrived(s, &first.pod).await?;
        let change = changes.iter().find(|change| change["role"] == "standby").context("it is not")?;
        ensure!(change["reason"] == "Switchover", "the reason is {}", change["reason"]);
        change["token"].as_i64().context("no token")
    })
    .await?;
    ensure!(token > first.token, "token {token} follows {}", first.token);
    no_pod_is_active(s).await?;
    let early = arrived(s, &next).await?;
    ensure!(early.iter().all(|change| change["role"] != "active"), "{next} was told too early: {early:?}");
    run(s, &first.pod, "rm /www/held").await?;
    let second = s.failover_within("requested", first, at, None, &["Switchover"], Some(HELD)).await?;
    ensure!((&second.pod, second.token) == (&next, token), "{second:?} is active");
    is_told(s, &first.pod, "standby", token).await?;
    is_told(s, &second.pod, "active", token).await?;
    s.settled(STARTED).await
}

/// With `onFailure: Abort` another pod follows if the next one refuses to be promoted.
async fn is_passed_over(s: &mut Scenario, active: &Active) -> Result<(Active, String)> {
    let next = standbys(s, active).await?.into_iter().next().context("no standby")?;
    run(s, &next, "touch /www/refuse-active /www/refuse-standby").await?;
    s.fails_for([active.uid.clone()], &["Switchover"]);
    s.request_switchover(NAME, "two", Some(&next)).await?;
    is_refused(s, "two", &next).await?;
    let after = s.settled(STARTED).await?;
    ensure!(after.pod != next && after.token > active.token, "{after:?} is active");
    // It may act as the active pod, so it is told that it is not, until it has understood.
    eventually("the condition that a pod is not told", TOLD, async || {
        let (status, reason, message) = s.condition(NAME, "Accepted").await?;
        ensure!(status == "True" && reason == "HookFailed", "it is {status} ({reason}): {message}");
        ensure!(message.contains(&next) && message.contains("HTTP 503"), "it says: {message}");
        Ok(())
    })
    .await?;
    run(s, &next, "rm /www/refuse-active /www/refuse-standby").await?;
    is_told(s, &next, "standby", after.token).await?;
    s.all_recover();
    Ok((s.settled(STARTED).await?, next))
}

/// With `onFailure: Abort` the former pod keeps the role if it refuses to be demoted.
async fn stays_if_it_cannot_be_demoted(s: &mut Scenario, active: &Active, refused: &str) -> Result<Active> {
    let patch = json!({ "spec": { "hooks": { "demote": { "onFailure": "Abort" } } } });
    s.groups().patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?;
    s.settled(STARTED).await?;
    let mut standbys = standbys(s, active).await?.into_iter();
    let to = standbys.find(|pod| pod != refused).context("no other standby")?;
    run(s, &active.pod, "touch /www/refuse-standby").await?;
    s.fails_for([active.uid.clone()], &["Switchover"]);
    s.request_switchover(NAME, "three", Some(&to)).await?;
    is_refused(s, "three", &active.pod).await?;
    run(s, &active.pod, "rm /www/refuse-standby").await?;
    s.all_recover();
    let after = s.settled(STARTED).await?;
    ensure!(after.uid == active.uid && after.token > active.token, "{after:?} is active");
    is_told(s, &after.pod, "active", after.token).await?;
    Ok(after)
}

/// The pod has no other to be replaced by.
async fn is_told_again_after_a_restart(s: &mut Scenario) -> Result<()> {
    s.scale(1).await?;
    let before = s.settled(STARTED).await?;
    s.fails_for([before.uid.clone()], &CRASHED);
    s.run_in(&before.pod, "kill 1").await?;
    eventually("the restarted container to be told", TOLD, async || {
        let pod = s.pods().get(&before.pod).await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        ensure!(statuses.iter().any(|container| container.restart_count == 1), "it has not restarted");
        let changes = told(s, &before.pod).await?;
        let again = changes.iter().any(|change| {
            change["role"] == "active" && change["token"].as_i64().is_some_and(|token| token >= before.token)
        });
        ensure!(again, "it was told {changes:?}");
        Ok(())
    })
    .await?;
    s.settled(STARTED).await.map(drop)
}

/// Waits until a request for a switchover was refused because of the hook of this pod, and an Event says so.
async fn is_refused(s: &Scenario, request: &str, pod: &str) -> Result<()> {
    eventually("the refusal of the request", STARTED, async || {
        let last = s.group().await?.status.unwrap_or_default().switchover.context("none is reported")?;
        ensure!(
            last.request == request && last.result == SwitchoverResult::Refused && last.message.contains(pod),
            "the status says {last:?}"
        );
        Ok(())
    })
    .await?;
    let events: Api<Event> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
    eventually("an Event of the failed hook", STARTED, async || {
        let all = events.list(&ListParams::default()).await?.items;
        let says = |event: &Event| {
            let note = event.note.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some("HookFailed") && note.contains(pod) && note.contains("HTTP 503")
        };
        ensure!(all.iter().any(says), "the Events are {all:?}");
        Ok(())
    })
    .await
}

async fn no_pod_is_active(s: &Scenario) -> Result<()> {
    let labelled = format!("{}=active", s.workload.role_label);
    let active = s.pods().list(&ListParams::default().labels(&labelled)).await?.items;
    ensure!(active.is_empty(), "{:?} is active", active[0].metadata.name);
    Ok(())
}

async fn standbys(s: &Scenario, active: &Active) -> Result<Vec<String>> {
    let names = s.members().await?.into_iter().filter_map(|pod| pod.metadata.name);
    Ok(names.filter(|name| *name != active.pod).collect())
}

/// Waits until a pod has answered that it has this role in the term of this token.
async fn is_told(s: &Scenario, pod: &str, role: &str, token: i64) -> Result<()> {
    eventually("a pod to be told its role", TOLD, async || {
        let changes = told(s, pod).await?;
        let is_it = |change: &Value| change["role"] == role && change["token"] == token;
        ensure!(
            changes.last().is_some_and(is_it),
            "{pod} is to be {role} in {token}, and was told {changes:?}"
        );
        Ok(())
    })
    .await
}

/// The requests that have arrived at a pod, whatever it answers.
async fn arrived(s: &Scenario, pod: &str) -> Result<Vec<Value>> {
    changes(s, pod, |line| line.strip_prefix("arrived ")).await
}

/// The requests that a pod's program has accepted.
async fn told(s: &Scenario, pod: &str) -> Result<Vec<Value>> {
    changes(s, pod, |line| line.starts_with('{').then_some(line)).await
}

async fn changes(s: &Scenario, pod: &str, of: impl Fn(&str) -> Option<&str>) -> Result<Vec<Value>> {
    let log = s.pods().logs(pod, &LogParams::default()).await?;
    log.lines().filter_map(of).map(|line| serde_json::from_str(line).context("a request")).collect()
}

async fn run(s: &Scenario, pod: &str, script: &str) -> Result<()> {
    let args = ["exec", "-n", &s.namespace, pod, "--", "/bin/sh", "-c", script];
    s.stage.run_kubectl(&args).await.map(drop)
}
