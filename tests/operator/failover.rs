//! Changes of holder, carried out by a replica as a process of its own. The test takes the part of the kubelet.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
    sessions::owner,
};

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
            && status["eligibleSummary"] == ready
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
    let beats = async || database.number("select max(beat) from leadergroup.session").await;
    let later = async |count: i64| {
        let until = beats().await + count;
        eventually("some heartbeats", async || beats().await >= until).await;
    };
    later(1).await;
    let versions = async || {
        let (group, pod) = (groups.get("web").await.unwrap(), pods.get(&first).await.unwrap());
        (group.resource_version(), pod.resource_version())
    };
    let before = versions().await;
    later(3).await;
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
    eventually("the second replica to own the group", async || owner(&database).await == Some(2)).await;
    let mut three = start("3");
    eventually("the third replica to be ready", async || three.get("/readyz").starts_with("HTTP/1.1 200"))
        .await;
    two.kill();
    eventually("the third replica to own the group", async || owner(&database).await == Some(3)).await;
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
