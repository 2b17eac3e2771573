//! Pod templates that set the role label.

use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod, events::v1::Event};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use leadergroup::api::ROLE_LABEL;
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, later, report},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

/// The `ReplicaSet` of a Deployment, with these labels in its template, as an owner of pods.
async fn replica_set(sets: &Api<ReplicaSet>, name: &str, labels: &Value) -> Value {
    let set = json!({
        "metadata": { "name": name, "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "web", "controller": true,
        }] },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "web" } }, "template": {
            "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "main", "image": "none" }] },
        } },
    });
    let set = sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": set.uid(), "controller": true }])
}

async fn create(pods: &Api<Pod>, name: &str, owner: &Value, labels: &Value) {
    let pod = json!({
        "metadata": { "name": name, "labels": labels, "ownerReferences": owner },
        "spec": { "nodeName": "node-of-templates", "containers": [{ "name": "main", "image": "none" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    report(pods, name, "True").await;
}

#[tokio::test]
async fn a_template_that_sets_the_role_label_is_a_condition_and_an_event_until_it_is_corrected() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("templates").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let (sets, events) = (
        Api::<ReplicaSet>::namespaced(client.clone(), &namespace),
        Api::<Event>::namespaced(client.clone(), &namespace),
    );
    let kubelet = keep_lease(client.clone(), "node-of-templates").await;
    let labels = json!({ "app": "web", ROLE_LABEL: "active" });
    let owner = replica_set(&sets, "web-1", &labels).await;
    for name in ["web-0", "web-1"] {
        create(&pods, name, &owner, &labels).await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());

    let accepted = async || condition(&groups, "web", "Accepted").await;
    eventually("the condition", async || accepted().await.1 == "RoleLabelInTemplate").await;
    let (status, _, message) = accepted().await;
    assert_eq!(status, "True", "the group works: {message}");
    for part in ["the pod template of Deployment web", ROLE_LABEL, "Take the label out of the template"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    let notes = async || -> Vec<String> {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let told = all.into_iter().filter(|event| event.reason.as_deref() == Some("RoleLabelInTemplate"));
        told.filter_map(|event| event.note).collect()
    };
    eventually("the Event", async || notes().await == [message.clone()]).await;
    let settled = async |eligible: &str| {
        let status = groups.get("web").await.unwrap().data["status"].clone();
        let ready = condition(&groups, "web", "Ready").await.0 == "True";
        ready && status["eligibleSummary"] == eligible && active(&pods).await.len() == 1
    };
    eventually("one active pod", async || settled("2/2").await).await;
    // A further pod is put right as well, without another report.
    create(&pods, "web-2", &owner, &labels).await;
    eventually("one active pod", async || settled("3/3").await).await;
    let version = async || groups.get("web").await.unwrap().resource_version();
    let before = version().await;
    later(client, "node-of-templates", 6).await;
    assert_eq!((version().await, notes().await.len()), (before, 1), "nothing is written at rest");

    // A rollout of a corrected template.
    let labels = json!({ "app": "web" });
    let owner = replica_set(&sets, "web-2", &labels).await;
    create(&pods, "web-3", &owner, &labels).await;
    for name in ["web-0", "web-1", "web-2"] {
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    eventually("the condition to be over", async || accepted().await.1 == "AsExpected").await;
    eventually("the new pod", async || active(&pods).await == ["web-3"]).await;
    assert_eq!(notes().await.len(), 1);
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
