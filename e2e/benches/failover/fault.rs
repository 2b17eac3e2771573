//! What happens to the pod that serves: faults and planned changes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use leadergroup_e2e::{moment::Moment, scenario::STARTED};
use serde_json::json;
use tokio::time;

use crate::candidate::{Candidate, Kind, Serving};

/// `kubectl drain` repeats an eviction that was refused after this time.
const AGAIN: Duration = Duration::from_secs(5);

/// A fault or a planned change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A switchover is requested.
    Switchover,
    /// The pod is deleted.
    Deletion,
    /// The pods are replaced one after the other, after a change of the template.
    Rollout,
    /// The node is cordoned, and the candidate's pods on it are evicted.
    Drain,
    /// The pod's processes are killed.
    Crash,
    /// The pod's processes stop, and their connections stay open.
    Freeze,
    /// The node loses power.
    PowerOff,
}

impl Fault {
    pub(crate) const ALL: [Self; 7] = [
        Self::Switchover,
        Self::Deletion,
        Self::Rollout,
        Self::Drain,
        Self::Crash,
        Self::Freeze,
        Self::PowerOff,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Switchover => "switchover",
            Self::Deletion => "deletion",
            Self::Rollout => "rollout",
            Self::Drain => "drain",
            Self::Crash => "crash",
            Self::Freeze => "freeze",
            Self::PowerOff => "power-off",
        }
    }

    /// Whether another pod must serve afterwards. After a crash the kubelet starts the same pod again.
    pub(crate) fn moves(self) -> bool {
        !matches!(self, Self::Crash | Self::Freeze)
    }

    /// Whether it is measured for a candidate. Only ours can be asked for a switchover. The silenceTimeout matters only
    /// if silence is the evidence, and client-go's retry period for planned changes.
    pub(crate) fn concerns(self, kind: Kind) -> bool {
        match kind {
            Kind::Ours { silence_timeout: "1s", .. } => matches!(self, Self::Freeze | Self::PowerOff),
            Kind::Ours { .. } => true,
            Kind::ClientGo([]) => {
                matches!(self, Self::Deletion | Self::Drain | Self::Freeze | Self::PowerOff)
            }
            Kind::Kubernetes | Kind::ClientGo(_) | Kind::Baseline => self != Self::Switchover,
        }
    }

    /// Causes it, and returns when. The caller causes a power-off.
    pub(crate) async fn cause(self, candidate: &Candidate, serving: &Serving) -> Result<Moment> {
        let scenario = &candidate.scenario;
        let at = Moment::now();
        match self {
            Self::Switchover => {
                scenario.request_switchover(&scenario.workload.name, &at.to_string(), None).await?;
            }
            Self::Deletion => {
                scenario.pods().delete(&serving.pod, &DeleteParams::default()).await?;
            }
            Self::Rollout => {
                let annotations = json!({ "example.com/restarted": at.to_string() });
                let template = json!({ "metadata": { "annotations": annotations } });
                let patch = Patch::Merge(json!({ "spec": { "template": template } }));
                scenario
                    .deployments()
                    .patch(&scenario.workload.name, &PatchParams::default(), &patch)
                    .await?;
            }
            Self::Crash => {
                scenario.stage.own()?.kill_pod(&serving.uid)?;
            }
            Self::Freeze => {
                scenario.stage.own()?.pause(&serving.uid)?;
            }
            Self::Drain => {
                scenario.cordon(&serving.node, true).await?;
                evict(candidate, &serving.node).await?;
            }
            Self::PowerOff => {}
        }
        Ok(at)
    }

    /// Undoes what lasts. The caller undoes a power-off.
    pub(crate) async fn undo(self, candidate: &Candidate, serving: &Serving) -> Result<()> {
        match self {
            Self::Freeze => {
                // It may have been replaced.
                let _ = candidate.scenario.stage.own()?.resume(&serving.uid);
            }
            Self::Drain => candidate.scenario.cordon(&serving.node, false).await?,
            _ => {}
        }
        Ok(())
    }

    /// Whether it is over for a candidate that is served again.
    pub(crate) async fn is_over(self, candidate: &Candidate) -> Result<bool> {
        if self != Self::Rollout {
            return Ok(true);
        }
        let deployment = candidate.scenario.deployments().get(&candidate.scenario.workload.name).await?;
        let generation = deployment.metadata.generation;
        let status = deployment.status.context("the Deployment has no status")?;
        let wanted = Some(candidate.scenario.workload.replicas);
        Ok(status.observed_generation == generation
            && [status.replicas, status.updated_replicas, status.available_replicas] == [wanted; 3])
    }
}

/// Evicts the candidate's pods on a node, as `kubectl drain` does: all at the same time, and again after five seconds
/// if a `PodDisruptionBudget` holds one back.
async fn evict(candidate: &Candidate, node: &str) -> Result<()> {
    let pods = candidate.scenario.pods();
    let there = pods.list(&ListParams::default().fields(&format!("spec.nodeName={node}"))).await?;
    let evictions = there.items.iter().map(ResourceExt::name_any).map(|name| {
        let pods = pods.clone();
        async move {
            loop {
                match pods.evict(&name, &EvictParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 429 => time::sleep(AGAIN).await,
                    Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                    answer => return answer.map(drop),
                }
            }
        }
    });
    let all = time::timeout(STARTED, try_join_all(evictions)).await;
    all.context("the evictions were not allowed in time")??;
    Ok(())
}
