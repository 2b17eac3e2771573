//! The node with the active pod, the bundled database and a replica of the operator loses power. Nothing fails over: a
//! pod of a `StatefulSet` on a lost node is not replaced. An administrator marks the node as out of service, so that
//! Kubernetes replaces the pod, and gives up its volume, which only the lost node has. With an empty database, the
//! operator takes the tokens from the group's status.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use leadergroup_e2e::{
    history::check,
    moment::Moment,
    scenario::{OPERATOR_NAMESPACE, STARTED, Scenario, Stage, Workload, eventually},
};

use super::{NOTICED, REASONS, active_on, node_is_ready, replica_on};
use crate::{bundled, ownership::node_of, trouble::store_reachable};

/// The volume claim of the database.
const CLAIM: &str = "data-leadergroup-postgresql-0";
/// The taint by which an administrator says that a node is off.
const OFF: &str = "node.kubernetes.io/out-of-service";
/// From the power-off to the last command of the administrator, and the failover that follows.
const WHOLE: Duration = Duration::from_mins(4);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let story = Scenario::play(stage, "database-lost-bundled", Workload::default(), async |s| {
        let operator = s.stage.operator.clone();
        bundled::database(&operator).await?;
        let pod = operator.pods().get(bundled::DATABASE).await?;
        let off = node_of(&pod).context("the database is on no node")?;
        // The nodes are cordoned only after these pods are on them.
        s.pods_ready().await?;
        replica_on(s, &off).await?;
        s.elect().await?;
        let before = active_on(s, &off, "to the database").await?;
        bundled::record_terms(&s.stage).await?;

        let at = Moment::from(s.stage.own()?.power_off(&off).await?);
        node_is_ready(&s.stage, &off, false).await?;
        // Kubernetes has told the pods to leave, and has replaced those that it can.
        eventually("the pods of the lost node to be replaced", NOTICED, async || {
            let pods = operator.pods().list(&ListParams::default()).await?;
            let stays =
                |pod: &&Pod| node_of(pod).as_ref() == Some(&off) && pod.metadata.deletion_timestamp.is_none();
            let stay: Vec<_> =
                pods.iter().filter(stays).filter_map(|pod| pod.metadata.name.clone()).collect();
            ensure!(stay.is_empty() || stay == [bundled::DATABASE], "{stay:?} stay on {off}");
            Ok(())
        })
        .await?;
        store_reachable(s, "False", "").await?;
        let now = s.active().await?;
        ensure!(now == before, "without a database {before:?} became {now:?}");
        let kept = Moment::now().since(at);

        let helped = Moment::now();
        for command in way_out(&off) {
            s.stage.run_kubectl(&command.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        }
        let fault = "power-off with the bundled database";
        let after = s.failover_within(fault, &before, at, None, &REASONS, Some(WHOLE)).await?;
        let followed =
            check(&s.objects().await?).promotions.into_iter().find(|next| next.token == after.token);
        let followed = followed.context("no promotion")?.seen.since(helped);
        s.note(format!(
            "without the database {} stayed the active pod, for {:.0} s; {:.1} s after the commands {} was active",
            before.pod,
            kept.as_secs_f64(),
            followed.as_secs_f64(),
            after.pod
        ));
        store_reachable(s, "True", "").await?;

        s.stage.own()?.power_on(&off).await?;
        s.stage.own()?.heal(STARTED).await?;
        s.stage.run_kubectl(&["taint", "node", &off, &format!("{OFF}-")]).await?;
        bundled::database(&operator).await?;
        operator.ready(STARTED).await?;
        let settled = s.settled(STARTED).await?;
        ensure!(settled == after, "the node's return moved the active role from {after:?} to {settled:?}");
        bundled::record_terms(&s.stage).await
    });
    Box::pin(bundled::with(stage, story)).await
}

/// The commands of the administrator, as in docs/operations.md.
fn way_out(node: &str) -> Vec<Vec<String>> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect();
    [
        format!("taint node {node} {OFF}=nodeshutdown:NoExecute"),
        format!("delete pvc {CLAIM} --namespace {OPERATOR_NAMESPACE} --wait=false"),
        format!("delete pod {} --namespace {OPERATOR_NAMESPACE} --force", bundled::DATABASE),
    ]
    .map(words)
    .into()
}
