//! Nodes, their leases, pods and groups, as kubelets and users would write them.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::LeaderGroup;
use serde_json::{Value, json};
use tokio::time::{interval, sleep};

use crate::network::{PORT, address};

/// The namespace of all groups.
pub(crate) const NAMESPACE: &str = "fleet";
/// Names the group of a pod.
pub(crate) const GROUP_LABEL: &str = "app";
/// Pods of each group.
pub(crate) const PODS: usize = 3;
/// Each node has a tenth of the pods, and at most one pod of a group.
pub(crate) const NODES: usize = 10;
/// A kubelet's interval.
const RENEWAL: Duration = Duration::from_secs(10);
const LEASES: &str = "kube-node-lease";
/// Requests at a time.
const PARALLEL: usize = 16;

/// The nodes and pods of all groups.
#[derive(Clone)]
pub(crate) struct Workload {
    client: Client,
    groups: usize,
    probed: bool,
    /// Nodes without power.
    dead: Arc<Mutex<BTreeSet<usize>>>,
}

/// A pod's place. The pod's name adds a generation, because a deleted pod is replaced by another one in the same place.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    group: usize,
    number: usize,
}

impl Place {
    /// From the name of a pod.
    pub(crate) fn of(pod: &str) -> Result<Self> {
        let mut parts = pod.split('-').skip(1).map(str::parse);
        let mut next = || parts.next().and_then(Result::ok).with_context(|| format!("{pod} is not ours"));
        Ok(Self { group: next()?, number: next()? })
    }

    pub(crate) fn address(self) -> Ipv4Addr {
        address(self.group * PODS + self.number)
    }

    pub(crate) fn node(self) -> usize {
        // Three apart, so that ten groups in a row have one pod of each number on every node.
        (self.group + self.number * 3) % NODES
    }
}

pub(crate) fn group_number(name: &str) -> Option<usize> {
    name.strip_prefix("group-")?.parse().ok()
}

fn group_name(group: usize) -> String {
    format!("group-{group:05}")
}

impl Workload {
    /// Creates nodes and pods, and starts renewing the nodes' leases.
    pub(crate) async fn start(client: &Client, groups: usize, probed: bool) -> Result<Self> {
        let workload = Self { client: client.clone(), groups, probed, dead: Arc::default() };
        let namespaces: Api<Namespace> = Api::all(client.clone());
        for name in [NAMESPACE, LEASES] {
            let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
            match namespaces.create(&PostParams::default(), &namespace).await {
                // The API server creates some namespaces itself.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                made => {
                    made.with_context(|| format!("creating the namespace {name}"))?;
                }
            }
        }
        for node in 0..NODES {
            workload.create_node(node).await.with_context(|| format!("creating node {node}"))?;
        }
        tokio::spawn(workload.clone().renew());
        let places = workload.places();
        stream::iter(places.into_iter().map(|place| workload.create_pod(place, 0)))
            .buffer_unordered(PARALLEL)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(workload)
    }

    /// The places of all pods.
    pub(crate) fn places(&self) -> Vec<Place> {
        let all = (0..self.groups).flat_map(|group| (0..PODS).map(move |number| Place { group, number }));
        all.collect()
    }

    pub(crate) fn place(group: usize, number: usize) -> Place {
        Place { group, number }
    }

    /// Creates all groups as fast as the API server takes them.
    pub(crate) async fn create_groups(&self) -> Result<()> {
        let api: Api<LeaderGroup> = Api::namespaced(self.client.clone(), NAMESPACE);
        let create = async |group| {
            let name = group_name(group);
            let object = serde_json::from_value(json!({
                "apiVersion": "leadergroup.dev/v1alpha1",
                "kind": "LeaderGroup",
                "metadata": { "name": name },
                "spec": { "selector": { "matchLabels": { GROUP_LABEL: name } } },
            }))?;
            api.create(&PostParams::default(), &object).await.with_context(|| format!("creating {name}"))?;
            anyhow::Ok(())
        };
        stream::iter((0..self.groups).map(create)).buffer_unordered(PARALLEL).try_collect().await
    }

    /// Deletes all groups with one request.
    pub(crate) async fn delete_groups(&self) -> Result<()> {
        let api: Api<LeaderGroup> = Api::namespaced(self.client.clone(), NAMESPACE);
        api.delete_collection(&DeleteParams::default(), &ListParams::default())
            .await
            .context("deleting all groups")?;
        Ok(())
    }

    /// Starts the deletion of these pods. They stay until [`Self::replace_pods`], which does the kubelet's part.
    pub(crate) async fn delete_pods(&self, pods: &[String]) -> Result<()> {
        let api = self.pods();
        let delete = async |pod: &String| api.delete(pod, &DeleteParams::default()).await.map(drop);
        stream::iter(pods.iter().map(delete)).buffer_unordered(2 * PARALLEL).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    /// Finishes the deletion of these pods, and creates others in their places.
    pub(crate) async fn replace_pods(&self, pods: &[String], generation: usize) -> Result<()> {
        let api = self.pods();
        let replace = async |pod: &String| {
            api.delete(pod, &DeleteParams::default().grace_period(0)).await?;
            self.create_pod(Place::of(pod)?, generation).await
        };
        stream::iter(pods.iter().map(replace)).buffer_unordered(PARALLEL).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    /// Stops the renewal of a node's lease.
    pub(crate) fn power_off(&self, node: usize) {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
    }

    /// Renews the leases of all nodes again.
    pub(crate) fn restore_power(&self) {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create_pod(&self, place: Place, generation: usize) -> Result<()> {
        let pod = NewPod {
            name: format!("pod-{:05}-{}-{generation}", place.group, place.number),
            group: group_name(place.group),
            node: place.node(),
            address: place.address(),
            probed: self.probed,
        };
        pod.create(&self.pods()).await
    }

    async fn create_node(&self, node: usize) -> Result<()> {
        let name = format!("node-{node}");
        let nodes: Api<Node> = Api::all(self.client.clone());
        let object = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        nodes.create(&PostParams::default(), &object).await?;
        let now = Timestamp::now().to_string();
        let status = json!({ "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }] } });
        nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
        let lease = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewal() },
        }))?;
        leases.create(&PostParams::default(), &lease).await?;
        Ok(())
    }

    /// Renews the leases of all nodes with power for ever, one after the other.
    async fn renew(self) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
        let mut beat = interval(RENEWAL / u32::try_from(NODES).expect("there are few nodes"));
        for node in (0..NODES).cycle() {
            beat.tick().await;
            if self.dead.lock().unwrap_or_else(PoisonError::into_inner).contains(&node) {
                continue;
            }
            let lease = json!({ "spec": { "renewTime": renewal() } });
            let name = format!("node-{node}");
            // The API server may be down. The next renewal is the retry.
            let _ = leases.patch(&name, &PatchParams::default(), &Patch::Merge(&lease)).await;
        }
    }
}

/// A pod to create that is ready at once.
pub(crate) struct NewPod {
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) node: usize,
    pub(crate) address: Ipv4Addr,
    pub(crate) probed: bool,
}

impl NewPod {
    pub(crate) async fn create(&self, api: &Api<Pod>) -> Result<()> {
        let Self { name, group, node, address, probed } = self;
        let probe = probed.then(|| json!({ "httpGet": { "path": "/ready", "port": PORT } }));
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { GROUP_LABEL: group } },
            "spec": {
                "nodeName": format!("node-{node}"),
                "containers": [{ "name": "main", "image": "none", "readinessProbe": probe }],
            },
        }))?;
        api.create(&PostParams::default(), &pod).await.with_context(|| format!("creating {name}"))?;
        let now = Timestamp::now().to_string();
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
        let status = json!({ "status": {
            "phase": "Running",
            "podIP": address.to_string(),
            "podIPs": [{ "ip": address.to_string() }],
            "startTime": now,
            "conditions": conditions,
            "containerStatuses": [{
                "name": "main", "image": "none", "imageID": "none", "ready": true, "started": true,
                "restartCount": 0, "state": { "running": { "startedAt": now } },
            }],
        } });
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .with_context(|| format!("writing the status of {name}"))?;
        Ok(())
    }
}

fn renewal() -> Value {
    json!(format!("{:.6}", Timestamp::now()))
}

/// Sleeps until this time has passed since `begin`.
pub(crate) async fn sleep_since(begin: Instant, time: Duration) {
    sleep(time.saturating_sub(begin.elapsed())).await;
}
