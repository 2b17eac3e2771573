//! A rolling update of the Deployment: the active pod is the last of the old ones, and hands over to a new pod before
//! it is deleted.

use std::{collections::BTreeSet, rc::Rc};

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::{DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Patch, PatchParams};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually};
use serde_json::json;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let mut deployment = Workload::default().deployment()?;
    let spec = deployment.spec.get_or_insert_default();
    // An old pod is deleted only when a new one has been ready for this long, which is enough for the hand-over to come
    // first also on a busy machine. The rollout takes three times as long.
    spec.min_ready_seconds = Some(10);
    spec.strategy = Some(DeploymentStrategy {
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(0)),
        }),
        ..DeploymentStrategy::default()
    });
    let workload = Workload { deployment: Some(Box::new(deployment)), ..Workload::default() };
    Scenario::play(stage, "rollout", workload, async |s| {
        let before = s.elect().await?;
        let client = s.call_from(&before.node).await?;
        let old: BTreeSet<_> = s.pods_ready().await?.into_iter().filter_map(|pod| pod.metadata.uid).collect();
        // Nobody says when it will be the last one.
        s.fails_for([before.uid.clone()], &["Rollout"]);
        let template = json!({ "metadata": { "annotations": { "example.com/revision": "2" } } });
        let patch = Patch::Merge(json!({ "spec": { "template": template } }));
        s.deployments().patch(&s.workload.name, &PatchParams::default(), &patch).await?;
        eventually("the old pods to be gone", STARTED, async || {
            let pods = s.members().await?;
            let uids = pods.iter().filter_map(|pod| pod.metadata.uid.as_ref());
            let left = uids.filter(|uid| old.contains(*uid)).count();
            ensure!(left == 0, "{left} old pods are left");
            Ok(())
        })
        .await?;
        let after = s.settled(STARTED).await?;
        ensure!(!old.contains(&after.uid), "{} is of the old revision", after.pod);
        let status = s.group().await?.status.unwrap_or_default();
        let reasons: Vec<_> = status.history.iter().map(|change| change.reason.as_str()).collect();
        ensure!(reasons == ["Rollout", "FirstHolder"], "the changes of holder are {reasons:?}");
        // The first promotion, and the one of the rollout.
        s.other_promotions = 2..=2;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
