//! What a kubelet reports, written by the tests.

use std::time::Duration;

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::ROLE_LABEL;
use serde_json::json;
use tokio::{task::AbortHandle, time::sleep};

use crate::postgres::eventually;

/// Renews the lease of a node until it is stopped: pods without a probe are judged by it.
pub(crate) async fn keep_lease(client: Client, node: &'static str) -> AbortHandle {
    let leases = Api::<Lease>::namespaced(client, "kube-node-lease");
    let lease = json!({ "metadata": { "name": node }, "spec": {} });
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    let renew = async move {
        loop {
            let renewal = Patch::Merge(json!({ "spec": { "renewTime": MicroTime(Timestamp::now()) } }));
            leases.patch(node, &PatchParams::default(), &renewal).await.unwrap();
            sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::spawn(renew).abort_handle()
}

/// Waits until a node's lease was renewed some times, twice a second: what the replicas do at intervals, they have
/// done.
pub(crate) async fn later(client: Client, node: &str, renewals: u32) {
    let leases = Api::<Lease>::namespaced(client, "kube-node-lease");
    let version = async || leases.get(node).await.unwrap().resource_version();
    for _ in 0..renewals {
        let before = version().await;
        eventually("the lease to be renewed", async || version().await != before).await;
    }
}

pub(crate) async fn run_pod(pods: &Api<Pod>, name: &str, node: &str) {
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "none" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    report(pods, name, "True").await;
}

/// Reports whether a pod is ready.
pub(crate) async fn report(pods: &Api<Pod>, name: &str, ready: &str) {
    let reason = (ready == "False").then_some("ContainersNotReady");
    let status = json!({
        "phase": "Running",
        "conditions": [
            { "type": "Ready", "status": ready, "reason": reason },
            { "type": "ContainersReady", "status": ready, "reason": reason },
        ],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// The pods that read as active.
pub(crate) async fn active(pods: &Api<Pod>) -> Vec<String> {
    let pods = pods.list(&ListParams::default()).await.unwrap();
    let active = pods.iter().filter(|pod| pod.labels().get(ROLE_LABEL).is_some_and(|role| role == "active"));
    active.map(ResourceExt::name_any).collect()
}
