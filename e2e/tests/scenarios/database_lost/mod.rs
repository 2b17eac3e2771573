//! One node loses power, with the active pod of a group, the database of the operator, and one of the operator's
//! replicas. With CloudNativePG a standby of the database takes over, and then the group fails over. With the bundled
//! database nothing happens until an administrator gives the database a new place.
//!
//! These scenarios wait for Kubernetes to notice that a node is lost, which takes a minute, and one of them builds
//! CloudNativePG. They run only on request.

pub(crate) mod bundled;
pub(crate) mod cloud_native_pg;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::DeleteParams};
use leadergroup_e2e::{
    moment::Moment,
    scenario::{Active, STARTED, Scenario, Stage, eventually},
};

use crate::ownership::node_of;

/// Kubernetes takes most of a minute to notice that a node is lost.
const NOTICED: Duration = Duration::from_mins(2);

/// Why the active pod is replaced. By the time that this is possible, its silence is long complete, and Kubernetes has
/// deleted it. A new owner of the group may see that before it has heard a candidate. Then the group has no holder for
/// a moment, and the next one is the first.
const REASONS: [&str; 5] = ["Silent", "PodNotReady", "PodDeleted", "DisruptionTarget", "FirstHolder"];

/// Makes the pod on this node active, and returns it.
async fn active_on(s: &mut Scenario, node: &str, request: &str) -> Result<Active> {
    let before = s.settled(STARTED).await?;
    if before.node == node {
        return Ok(before);
    }
    let there = standby_on(s, node).await?;
    let at = Moment::now();
    s.request_switchover(&s.workload.name, request, Some(&there)).await?;
    s.failover("requested", &before, at, None, &["Switchover"]).await?;
    let active = s.settled(STARTED).await?;
    ensure!(active.node == node, "{} is active on {}, not on {node}", active.pod, active.node);
    Ok(active)
}

/// The name of the pod on this node. If there is none, because a pod left the node when it was lost, one that shares
/// its node with another is deleted: the next one is spread over the nodes.
async fn standby_on(s: &Scenario, node: &str) -> Result<String> {
    for _ in 0..3 {
        let active = s.settled(STARTED).await?;
        let pods = s.pods_ready().await?;
        if let Some(there) = pods.iter().find(|pod| node_of(pod).as_deref() == Some(node)) {
            return there.metadata.name.clone().context("a pod without a name");
        }
        let shares = |pod: &&Pod| pods.iter().filter(|other| node_of(other) == node_of(pod)).count() > 1;
        let mut names = pods.iter().filter(shares).filter_map(|pod| pod.metadata.name.clone());
        let standby = names.find(|name| *name != active.pod).context("no two pods share a node")?;
        s.pods().delete(&standby, &DeleteParams::default()).await?;
        eventually("the pod to be gone", STARTED, async || {
            ensure!(s.pods().get_opt(&standby).await?.is_none(), "{standby} is still there");
            Ok(())
        })
        .await?;
    }
    bail!("no pod of the group comes to {node}")
}

/// Waits until Kubernetes says that a node is not ready, or ready again.
async fn node_is_ready(stage: &Stage, node: &str, wanted: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(stage.kube.clone());
    eventually("Kubernetes to notice the state of a node", NOTICED, async || {
        let ready = leadergroup_e2e::cluster::is_ready(&nodes.get(node).await?);
        ensure!(ready == wanted, "that {node} is ready: {ready}");
        Ok(())
    })
    .await
}

/// Moves a replica of the operator to this node if none is there: all other nodes are cordoned while one is replaced.
async fn replica_on(s: &Scenario, node: &str) -> Result<()> {
    let operator = &s.stage.operator;
    for _ in 0..3 {
        let replicas = operator.replicas().await?;
        let nodes: Vec<_> = replicas.iter().filter_map(node_of).collect();
        if nodes.iter().filter(|on| *on == node).count() == 1 {
            return Ok(());
        }
        let name = replicas.first().and_then(|pod| pod.metadata.name.clone()).context("no replica")?;
        let others = s.stage.own()?.nodes().iter().filter(|other| other.name != node);
        let others: Vec<String> = others.map(|other| other.name.clone()).collect();
        for other in &others {
            s.cordon(other, true).await?;
        }
        let replaced = async {
            operator.pods().delete(&name, &DeleteParams::default()).await?;
            operator.ready(STARTED).await
        };
        let replaced = replaced.await;
        for other in &others {
            s.cordon(other, false).await?;
        }
        replaced?;
    }
    bail!("the operator never has exactly one replica on {node}")
}
