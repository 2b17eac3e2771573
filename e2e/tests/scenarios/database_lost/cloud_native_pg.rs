//! The node with the active pod, the primary of a CloudNativePG cluster and a replica of the operator loses power.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use leadergroup_e2e::{
    history::check,
    images::POSTGRES,
    moment::Moment,
    scenario::{OPERATOR_NAMESPACE, STARTED, Scenario, Stage, Workload, database_rounds, eventually},
};
use serde_json::{Value, json};

use super::{NOTICED, REASONS, active_on};
use crate::{
    bundled::{record_terms_of, usual_again},
    ownership::{node_of, node_with_a_replica},
    trouble::store_reachable,
};

/// The Cluster of the chart.
const CLUSTER: &str = "leadergroup-pg";
const INSTANCES: u64 = 3;
/// Time for the former primary to be a standby again.
const REJOINS: Duration = Duration::from_mins(3);
/// After the database has a primary: Kubernetes' proxies route to it, the operator reaches it, takes over the groups of
/// the lost replica, for which it waits for the ttl of a session, and acts.
const ACTS: Duration = Duration::from_secs(30);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    stage.own()?.install_cloud_native_pg().await?;
    let values = json!({
        "image": { "tag": env!("CARGO_PKG_VERSION") },
        "postgresql": { "mode": "CloudNativePG", "cloudNativePG": { "image": POSTGRES } },
        // The rights stay as they are: Helm does not change a role that somebody else has written.
        "managedEndpoints": { "enabled": true },
        "podDeletion": { "enabled": true },
    });
    stage.operator.install(&values).await.context("installing the chart with CloudNativePG")?;
    let rounds = database_rounds()?.unwrap_or(1);
    let story = Scenario::play(stage, "database-lost", Workload::default(), async |s| {
        settled(s).await?;
        s.elect().await?;
        for round in 1..=rounds {
            power_off(s, round).await.with_context(|| format!("round {round} of {rounds}"))?;
        }
        record_terms(stage).await
    });
    let mut told = Box::pin(story).await;
    if told.is_ok() {
        // The end of a group's pods may have begun one more term.
        told = record_terms(stage).await;
    }
    usual_again(stage).await?;
    // The chart keeps it.
    clusters(stage).delete(CLUSTER, &DeleteParams::default()).await?;
    told
}

async fn power_off(s: &mut Scenario, round: u64) -> Result<()> {
    let stage = Rc::clone(&s.stage);
    let off = node_with_a_replica(s).await?;
    let primary = primary_on(s, &off).await?;
    let before = active_on(s, &off, &format!("to the database, {round}")).await?;
    let client = s.call_from(&s.another_node(&off)?).await?;
    client.reaches(&before.pod).await?;
    let at = Moment::from(stage.own()?.power_off(&off).await?);
    let promoted = async {
        eventually("a standby of the database to be promoted", NOTICED, async || {
            let status = status(&stage).await?;
            let now = text(&status, "currentPrimary")?;
            ensure!(now != primary, "{primary} is still the primary");
            Ok(Moment::now().since(at))
        })
        .await
    };
    let failover = s.failover_within(
        "power-off with the database's primary",
        &before,
        at,
        Some(&client),
        &REASONS,
        Some(NOTICED),
    );
    let (promoted, after) = futures::join!(promoted, Box::pin(failover));
    let (promoted, after) = (promoted?, after?);
    let followed = check(&s.objects().await?).promotions.into_iter().find(|found| found.token == after.token);
    let followed = followed.context("no promotion")?.seen.since(at);
    s.note(format!(
        "round {round}: {primary} and {} on {off}; a primary again after {:.1} s, an active pod after {:.1} s",
        before.pod,
        promoted.as_secs_f64(),
        followed.as_secs_f64()
    ));
    ensure!(followed < promoted + ACTS, "the group followed {followed:?} after, the database {promoted:?}");
    store_reachable(s, "True", "").await?;
    stage.own()?.power_on(&off).await?;
    stage.own()?.heal(STARTED).await?;
    stage.operator.ready(STARTED).await?;
    settled(s).await?;
    let settled = s.settled(STARTED).await?;
    ensure!(settled == after, "the node's return moved the active role from {after:?} to {settled:?}");
    s.hang_up(client).await?;
    Ok(())
}

fn clusters(stage: &Stage) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("postgresql.cnpg.io", "v1", "Cluster");
    Api::namespaced_with(stage.kube.clone(), OPERATOR_NAMESPACE, &ApiResource::from_gvk(&kind))
}

async fn status(stage: &Stage) -> Result<Value> {
    Ok(clusters(stage).get(CLUSTER).await?.data["status"].clone())
}

fn text(status: &Value, field: &str) -> Result<String> {
    Ok(status[field].as_str().with_context(|| format!("the status has no {field}"))?.to_owned())
}

/// Waits until the primary sends its log to all other instances, and returns its name. Until then the loss of the
/// primary counts as a second loss, after which no standby is promoted. The status of the Cluster may be late.
async fn settled(s: &Scenario) -> Result<String> {
    let query =
        "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = 'quorum'";
    eventually("every standby of the database to follow the primary", REJOINS, async || {
        let status = status(&s.stage).await?;
        let (current, target) = (text(&status, "currentPrimary")?, text(&status, "targetPrimary")?);
        ensure!(current == target, "{current} is the primary, {target} is to be");
        let psql = ["psql", "--no-psqlrc", "-qAt", "-U", "postgres", "-c", query];
        let exec = ["exec", "--namespace", OPERATOR_NAMESPACE, &current, "-c", "postgres", "--"];
        let standbys: u64 = s.stage.run_kubectl(&[&exec[..], &psql].concat()).await?.trim().parse()?;
        ensure!(standbys + 1 == INSTANCES, "{standbys} standbys follow {current}");
        let ready = status["readyInstances"].as_u64().unwrap_or_default();
        ensure!(ready == INSTANCES, "{ready} of {INSTANCES} are ready");
        Ok(current)
    })
    .await
}

/// Makes the instance on this node the primary, as `kubectl cnpg promote` does, and returns its name.
async fn primary_on(s: &Scenario, node: &str) -> Result<String> {
    settled(s).await?;
    let pods = s.stage.operator.pods();
    let selector = format!("cnpg.io/cluster={CLUSTER},cnpg.io/podRole=instance");
    let instances = pods.list(&ListParams::default().labels(&selector)).await?;
    let there = instances.items.into_iter().find(|pod| node_of(pod).as_deref() == Some(node));
    let there = there.and_then(|pod| pod.metadata.name).with_context(|| format!("no instance on {node}"))?;
    if text(&status(&s.stage).await?, "currentPrimary")? != there {
        let patch = json!({ "status": {
            "targetPrimary": there,
            "targetPrimaryTimestamp": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            "phase": "Switchover in progress",
            "phaseReason": format!("Switching over to {there}"),
        } });
        let status = clusters(&s.stage);
        status.patch_status(CLUSTER, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    eventually("the database to switch over", STARTED, async || {
        let primary = settled(s).await?;
        ensure!(primary == there, "{primary} is the primary, not {there}");
        Ok(())
    })
    .await?;
    store_reachable(s, "True", "").await?;
    Ok(there)
}

async fn record_terms(stage: &Stage) -> Result<()> {
    let primary = text(&status(stage).await?, "currentPrimary")?;
    record_terms_of(stage, &[&primary, "-c", "postgres"], "postgres").await
}
