//! A rolling update of the Deployment: the first new pod becomes active when the first old pod, the active one, is
//! deleted, and stays active until the end.

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
    // An old pod is deleted only when a new one has been ready for longer than `retryInterval`.
    spec.min_ready_seconds = Some(2);
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
        // The ReplicaSet deletes the active pod first: with two more old pods, the next holder could be one of them.
        annotate(s, &before.pod).await?;
        // A program that ends on SIGTERM may refuse probes before the watch shows that its pod is being deleted. This
        // lasts until the scenario's end, because nobody says when each pod will be deleted.
        s.fails(old.iter().cloned());
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
        // The first promotion, and the one of the rollout.
        s.other_promotions = 2..=2;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}

async fn annotate(s: &Scenario, pod: &str) -> Result<()> {
    let annotations = json!({ "controller.kubernetes.io/pod-deletion-cost": "-1" });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    s.pods().patch(pod, &PatchParams::default(), &patch).await?;
    Ok(())
}
