//! Deletes pods that were active.

use futures::{StreamExt as _, stream};
use kube::api::{DeleteParams, Preconditions};

use super::{GroupRef, Router, RoutingError};
use crate::api::PodAt;

/// How many pods of one group are deleted concurrently.
const PARALLEL: usize = 8;

impl Router {
    /// Deletes these pods, each with its own grace period. A pod that has changed since it was seen is left alone. All
    /// pods are tried, even if some fail.
    pub async fn delete_pods(&self, group: &GroupRef, pods: &[PodAt]) -> Result<(), RoutingError> {
        let this = &self.in_background();
        let deletions: Vec<_> = pods.iter().map(|at| this.delete_pod(group, at)).collect();
        let outcomes: Vec<_> = stream::iter(deletions).buffered(PARALLEL).collect().await;
        outcomes.into_iter().collect()
    }

    async fn delete_pod(&self, group: &GroupRef, at: &PodAt) -> Result<(), RoutingError> {
        let PodAt { pod, version } = at;
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: version.clone() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api = self.pods(group);
        match self.send("delete", "delete a pod that was active", api.delete(&pod.name, &params)).await {
            Err(error) if !matches!(error.code(), Some(404 | 409)) => Err(error),
            _ => Ok(()),
        }
    }
}
