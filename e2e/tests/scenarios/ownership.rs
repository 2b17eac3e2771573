//! The owner of a scenario's group: finds it, and moves the ownership to the replica that the scenario needs.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use leadergroup_e2e::scenario::{STARTED, Scenario, eventually};

/// The session that owns the group, and the name of its replica.
pub(crate) async fn owner(s: &Scenario) -> Result<(String, String)> {
    let query = format!(
        "select s.id, split_part(s.name, '/', 2) from leadergroup.lock l join leadergroup.session s on s.id = l.session \
         where not s.dead and l.key like '%/{}/{}'",
        s.namespace, s.workload.name
    );
    // A group that is being handed to another replica has no owner for a moment.
    eventually("a living session to own the group", STARTED, async || {
        let row = s.stage.own()?.database().sql("leadergroup", &query).await?;
        let (session, name) = row.trim().split_once('|').context("no living session owns the group")?;
        Ok((session.to_owned(), name.to_owned()))
    })
    .await
}

/// The node of a replica, with no other replica on it.
pub(crate) async fn node_with_a_replica(s: &Scenario) -> Result<String> {
    let nodes: Vec<_> = s.stage.operator.replicas().await?.iter().filter_map(node_of).collect();
    let alone = nodes.iter().find(|node| nodes.iter().filter(|other| other == node).count() == 1);
    alone.cloned().with_context(|| format!("the operator's replicas are on {nodes:?}"))
}

/// Makes sure that the owner of the group is on this node, or on another one. An owner on the wrong node is deleted:
/// it gives up its groups, and a remaining replica takes and keeps them, long before the replacement starts.
pub(crate) async fn move_ownership(s: &Scenario, node: &str, there: bool) -> Result<()> {
    for _ in 0..3 {
        let (session, name) = owner(s).await?;
        let replicas = s.stage.operator.replicas().await?;
        let replica = replicas.iter().find(|pod| pod.metadata.name.as_ref() == Some(&name));
        let replica = replica.with_context(|| format!("the owner {name} is not a replica"))?;
        if (node_of(replica).as_deref() == Some(node)) == there {
            return Ok(());
        }
        s.stage.operator.pods().delete(&name, &DeleteParams::default()).await?;
        eventually("another replica to own the group", STARTED, async || {
            let (other, name) = owner(s).await?;
            ensure!(other != session, "{name} still owns the group");
            Ok(())
        })
        .await?;
        s.stage.operator.ready(STARTED).await?;
    }
    bail!("the owner is never on the right node")
}

pub(crate) fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}
