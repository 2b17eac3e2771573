//! Which replica of the operator is in charge of a scenario's group, and to see to it that it is the one that the story needs.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use leadergroup_e2e::scenario::{STARTED, Scenario, eventually};

/// The session in charge of the group, and the name of its replica.
pub(crate) async fn in_charge(s: &Scenario) -> Result<(String, String)> {
    let query = format!(
        "select s.id, split_part(s.name, '/', 2) from leadergroup.lock l join leadergroup.session s on s.id = l.session \
         where not s.dead and l.key like '%/{}/{}'",
        s.namespace, s.workload.name
    );
    let row = s.stage.own()?.database().sql("leadergroup", &query).await?;
    let (session, name) = row.trim().split_once('|').context("no living session is in charge")?;
    Ok((session.to_owned(), name.to_owned()))
}

/// The node of some replica, where there is no other one.
pub(crate) async fn node_with_a_replica(s: &Scenario) -> Result<String> {
    let nodes: Vec<_> = s.stage.operator.replicas().await?.iter().filter_map(node_of).collect();
    let alone = nodes.iter().find(|node| nodes.iter().filter(|other| other == node).count() == 1);
    alone.cloned().with_context(|| format!("the operator's replicas are on {nodes:?}"))
}

/// Sees to it that the replica in charge is on this node, or on another one. One that is not where it should be is deleted: it
/// gives its charges up, and whoever lives takes them and keeps them, long before the replacement is there.
pub(crate) async fn put_in_charge(s: &Scenario, node: &str, there: bool) -> Result<()> {
    for _ in 0..3 {
        let (session, name) = in_charge(s).await?;
        let replicas = s.stage.operator.replicas().await?;
        let replica = replicas.iter().find(|pod| pod.metadata.name.as_ref() == Some(&name));
        let replica = replica.with_context(|| format!("{name} is in charge, and no replica"))?;
        if (node_of(replica).as_deref() == Some(node)) == there {
            return Ok(());
        }
        s.stage.operator.pods().delete(&name, &DeleteParams::default()).await?;
        eventually("another replica to take charge", STARTED, async || {
            let (other, name) = in_charge(s).await?;
            ensure!(other != session, "{name} is still in charge");
            Ok(())
        })
        .await?;
        s.stage.operator.ready(STARTED).await?;
    }
    bail!("the replica in charge is never where it should be")
}

pub(crate) fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}
