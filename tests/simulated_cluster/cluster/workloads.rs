//! The Deployments of the groups: how many pods of which template each has, and how a rollout replaces them.

use std::{cmp::Reverse, time::Duration};

use serde_json::{Value, json};

use super::{Cluster, NAMESPACE, is_ready};
use crate::api_server::{DeleteOptions, Kind, Object};

/// The label that a Deployment sets on the pods of each template.
const TEMPLATE: &str = "pod-template-hash";

/// A Deployment.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// How many pods it is to have.
    pods: usize,
    /// Counts its templates.
    template: u32,
    /// The UID of the `ReplicaSet` of this template.
    replica_set: String,
    /// Whether a rollout first creates a pod (`maxSurge: 1`), or first deletes one (`maxUnavailable: 1`).
    surges: bool,
}

impl Workload {
    /// The name of its present template, as its label has it.
    fn hash(&self) -> String {
        format!("t{}", self.template)
    }
}

/// A pod that is not being deleted, as a controller sees it.
struct Present {
    name: String,
    is_old: bool,
    is_ready: bool,
    /// What the annotation says that its deletion costs.
    cost: i64,
    /// Grows with each pod that is created.
    number: u32,
}

impl Present {
    fn of(pod: &Object, workload: &Workload) -> Self {
        let (value, name) = (pod.value(), pod.key.name.clone());
        let cost = value["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].as_str();
        Self {
            is_old: value["metadata"]["labels"][TEMPLATE] != workload.hash(),
            is_ready: is_ready(pod),
            cost: cost.and_then(|text| text.parse().ok()).unwrap_or(0),
            number: name.rsplit('-').next().and_then(|text| text.parse().ok()).unwrap_or(0),
            name,
        }
    }
}

impl Cluster {
    /// The Deployment of a new group: of three pods.
    pub(super) fn add_workload(&mut self, group: &str) {
        let deployment = json!({ "metadata": { "name": group } });
        self.create(Kind::Deployment, NAMESPACE, deployment);
        let workload = Workload { pods: 3, template: 0, replica_set: String::new(), surges: true };
        self.workloads.insert(group.to_owned(), workload);
        self.roll_out(group, true);
    }

    /// A user changes the template of a Deployment.
    pub fn roll_out(&mut self, group: &str, surges: bool) -> bool {
        let is_running = self.api.is_running();
        let Some(workload) = self.workloads.get_mut(group).filter(|_| is_running) else { return false };
        workload.template += 1;
        workload.surges = surges;
        let name = format!("{group}-{}", workload.hash());
        let owner = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": group, "uid": group, "controller": true });
        let replica_set = json!({ "metadata": { "name": name, "ownerReferences": [owner] } });
        let created = self.api.store().create(Kind::ReplicaSet, NAMESPACE, replica_set);
        created.expect("there is none of this name").uid().clone_into(&mut workload.replica_set);
        true
    }

    /// A user scales a Deployment. Returns whether it had another number of pods.
    pub fn scale(&mut self, group: &str, pods: usize) -> bool {
        let workload = self.workloads.get_mut(group);
        workload.is_some_and(|workload| std::mem::replace(&mut workload.pods, pods) != pods)
    }

    /// How many pods of a group there are, those of former templates first.
    pub fn pods_by_age(&self, group: &str) -> (usize, usize) {
        let present = self.workloads.get(group).map(|workload| self.present(group, workload));
        let present = present.unwrap_or_default();
        let old = present.iter().filter(|pod| pod.is_old).count();
        (old, present.len() - old)
    }

    fn present(&self, group: &str, workload: &Workload) -> Vec<Present> {
        let store = self.api.store();
        let pods = store.objects(Kind::Pod).values().filter(|pod| !pod.is_being_deleted());
        let of_group = pods.filter(|pod| pod.labels().is_some_and(|labels| labels["app"] == group));
        of_group.map(|pod| Present::of(pod, workload)).collect()
    }

    /// Creates and deletes pods as the Deployments and their `ReplicaSets` do.
    pub(super) fn follow_workloads(&mut self, now: Duration) {
        for (group, workload) in self.workloads.clone() {
            self.follow_workload(&group, &workload, now);
        }
    }

    fn follow_workload(&mut self, group: &str, workload: &Workload, now: Duration) {
        let mut present = self.present(group, workload);
        // A ReplicaSet first deletes pods that are not ready, then those whose deletion costs least, then the youngest.
        present.sort_by_key(|pod| (!pod.is_old, pod.is_ready, pod.cost, Reverse(pod.number)));
        let old = present.iter().filter(|pod| pod.is_old).count();
        let surge = usize::from(workload.surges && old > 0);
        let most = workload.pods + surge;
        let least = workload.pods.saturating_sub(usize::from(!workload.surges));
        let ready = present.iter().filter(|pod| pod.is_ready).count();
        let (mut excess, mut spare) = (present.len().saturating_sub(most), ready.saturating_sub(least));
        for pod in &present {
            let is_spare = pod.is_old && (!pod.is_ready || spare > 0);
            if excess == 0 && !is_spare {
                continue;
            }
            excess = excess.saturating_sub(1);
            spare = spare.saturating_sub(usize::from(pod.is_ready));
            self.delete_pod(&pod.name, false);
        }
        let young = present.len() - old;
        for _ in young..workload.pods.min(most.saturating_sub(old)) {
            self.create_pod(group, workload, now);
        }
    }

    /// What a pod of this template is created with.
    pub(super) fn template(group: &str, workload: &Workload) -> Value {
        let hash = workload.hash();
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{group}-{hash}"), "uid": workload.replica_set,
            "controller": true,
        });
        json!({ "labels": { "app": group, TEMPLATE: hash }, "ownerReferences": [owner] })
    }
}

/// A deletion with the usual time to end, or by force.
pub(super) fn deletion(by_force: bool) -> DeleteOptions {
    DeleteOptions { grace_seconds: Some(if by_force { 0 } else { 30 }), ..DeleteOptions::default() }
}
