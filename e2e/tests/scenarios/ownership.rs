//! The owner of a scenario's group: finds it, and moves the ownership to the replica that the scenario needs.

use std::collections::BTreeMap;

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

/// Waits until the heartbeats of the sessions that own so many groups of the namespace go on. The session of a replica
/// that was lost seems to own its groups until the other replicas have noticed.
pub(crate) async fn all_owned(s: &Scenario, groups: u64) -> Result<()> {
    let query = format!(
        "select s.id, s.beat, count(*) from leadergroup.lock l join leadergroup.session s on s.id = l.session \
         where not s.dead and l.key like '%/{}/%' group by s.id, s.beat",
        s.namespace
    );
    let mut first: BTreeMap<String, u64> = BTreeMap::new();
    eventually("living sessions to own all groups", STARTED, async || {
        let rows = s.stage.own()?.database().sql("leadergroup", &query).await?;
        let mut owned = 0;
        for row in rows.lines() {
            let mut columns = row.split('|');
            let mut next = || columns.next().with_context(|| format!("a row of three columns, not {row}"));
            let (session, beat, count) = (next()?, next()?.parse()?, next()?.parse::<u64>()?);
            if beat > *first.entry(session.to_owned()).or_insert(beat) {
                owned += count;
            }
        }
        ensure!(owned == groups, "{owned} of {groups} groups have an owner that lives");
        Ok(())
    })
    .await
}

/// Fails unless a session has ended without its replica's doing: the replica neither closed it nor keeps it alive.
pub(crate) async fn was_lost(s: &Scenario, session: &str) -> Result<()> {
    let query = format!("select dead, closed from leadergroup.session where id = '{session}'");
    let row = s.stage.own()?.database().sql("leadergroup", &query).await?;
    ensure!(row.trim() == "t|f", "whether the session {session} is dead, and was closed: {row}");
    Ok(())
}

/// The node of a replica, with no other replica on it.
pub(crate) async fn node_with_a_replica(s: &Scenario) -> Result<String> {
    let nodes: Vec<_> = s.stage.operator.replicas().await?.iter().filter_map(node_of).collect();
    let alone = nodes.iter().find(|node| nodes.iter().filter(|other| other == node).count() == 1);
    alone.cloned().with_context(|| format!("the operator's replicas are on {nodes:?}"))
}

/// The node of the replica with this name.
async fn node_of_replica(s: &Scenario, name: &str) -> Result<String> {
    let replicas = s.stage.operator.replicas().await?;
    let replica = replicas.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
    let replica = replica.with_context(|| format!("the owner {name} is not a replica"))?;
    node_of(replica).with_context(|| format!("{name} is on no node"))
}

/// Waits until the owner of the group is on another node than this one, the active pod's: the group falls to a replica
/// there. Returns its name and its node.
pub(crate) async fn owner_elsewhere(s: &Scenario, node: &str) -> Result<(String, String)> {
    eventually("an owner on another node than the active pod", STARTED, async || {
        let (_, name) = owner(s).await?;
        let on = node_of_replica(s, &name).await?;
        ensure!(on != node, "the owner {name} is on {node}");
        Ok((name, on))
    })
    .await
}

/// Moves the ownership of the group to the replica on this node. Another owner is deleted: it gives up its groups, and
/// the remaining replica takes them. If that is the active pod's node, it gives them away once the other replica's
/// replacement has lived for one session ttl.
pub(crate) async fn move_ownership(s: &Scenario, node: &str) -> Result<()> {
    for _ in 0..3 {
        let (session, name) = owner(s).await?;
        if node_of_replica(s, &name).await? == node {
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
