//! Changes of holder, carried out by a replica as a process of its own. The test takes the part of the kubelet.

use std::time::Duration;

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::ROLE_LABEL;
use serde_json::{Value, json};
use tokio::{task::AbortHandle, time::sleep};

use crate::{
    apiserver::ApiServer,
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

/// Renews the lease of a node until it is stopped: pods without a probe are judged by it.
async fn keep_lease(client: Client, node: &'static str) -> AbortHandle {
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

async fn run_pod(pods: &Api<Pod>, name: &str, node: &str) {
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "none" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    report(pods, name, "True").await;
}

/// Reports whether a pod is ready.
async fn report(pods: &Api<Pod>, name: &str, ready: &str) {
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
async fn active(pods: &Api<Pod>) -> Vec<String> {
    let pods = pods.list(&ListParams::default()).await.unwrap();
    let active = pods.iter().filter(|pod| pod.labels().get(ROLE_LABEL).is_some_and(|role| role == "active"));
    active.map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn the_role_follows_the_evidence_the_status_follows_the_role_and_then_nothing_is_written() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("failover").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client, "node-of-one").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-one").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());

    let settled = async |name: &str, ready: &str| {
        let status = groups.get("web").await.unwrap().data["status"].clone();
        active(&pods).await == [name]
            && status["active"]["pod"] == name
            && status["ready"] == ready
            && condition(&groups, "web", "Ready").await.0 == "True"
    };
    let newest = async || -> Value { groups.get("web").await.unwrap().data["status"]["history"][0].clone() };
    eventually("the first holder", async || !active(&pods).await.is_empty()).await;
    let first = active(&pods).await.remove(0);
    let second = if first == "web-0" { "web-1" } else { "web-0" };
    eventually("the status", async || settled(&first, "2/2").await).await;

    // The kubelet says that it is not ready, and later that it is.
    report(&pods, &first, "False").await;
    eventually("the second holder", async || settled(second, "1/2").await).await;
    assert_eq!(
        (newest().await["from"].clone(), newest().await["reason"].clone()),
        (json!(first), json!("PodNotReady"))
    );
    report(&pods, &first, "True").await;
    eventually("the first one to be eligible again", async || settled(second, "2/2").await).await;

    // The holder is deleted.
    pods.delete(second, &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("the first one to be active again", async || settled(&first, "1/1").await).await;
    assert_eq!(newest().await["reason"], "PodDeleted");

    // At rest nothing is written, although leases and heartbeats go on.
    sleep(Duration::from_secs(1)).await;
    let versions = async || {
        let (group, pod) = (groups.get("web").await.unwrap(), pods.get(&first).await.unwrap());
        (group.resource_version(), pod.resource_version())
    };
    let before = versions().await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(versions().await, before);
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn another_replica_keeps_the_holder_of_one_that_ends_or_is_killed_and_replaces_it_when_it_must() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("adoption").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client, "node-of-two").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-two").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let start =
        |name| Operator::start_as(name, server, &namespace, &[("LEADERGROUP_DATABASE_URL", url.as_str())]);
    // The name of the replica that owns the group, which is a number; 0 if there is none.
    let owner = async || {
        let owner = "select coalesce(max(split_part(s.name, '/', 2)::int8), 0) from leadergroup.lock l \
                     join leadergroup.session s on s.id = l.session where not s.dead";
        database.number(owner).await
    };
    let mut one = start("1");
    eventually("a holder", async || active(&pods).await.len() == 1).await;
    let first = active(&pods).await;
    eventually("its confirmation", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    let token = async || groups.get("web").await.unwrap().data["status"]["token"].clone();
    let before = token().await;

    let mut two = start("2");
    eventually("the second replica to be ready", async || two.get("/readyz").starts_with("HTTP/1.1 200"))
        .await;
    assert!(one.end().await.0.success(), "{}", one.log());
    eventually("the second replica to own the group", async || owner().await == 2).await;
    let mut three = start("3");
    eventually("the third replica to be ready", async || three.get("/readyz").starts_with("HTTP/1.1 200"))
        .await;
    two.kill();
    eventually("the third replica to own the group", async || owner().await == 3).await;
    assert_eq!((active(&pods).await, token().await), (first.clone(), before), "adoption is no failover");

    report(&pods, &first[0], "False").await;
    eventually("the third replica to replace the holder", async || {
        let now = active(&pods).await;
        now.len() == 1 && now != first
    })
    .await;
    kubelet.abort();
    assert!(three.end().await.0.success(), "{}", three.log());
}
