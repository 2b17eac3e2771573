//! Groups and pods as users create them.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject},
};
use leadergroup::api::{LeaderGroup, STAMP_ANNOTATION};
use serde_json::{Value, json};

pub(crate) fn group(name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": { "name": name },
        "spec": spec
    }))
    .unwrap()
}

pub(crate) fn groups(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<LeaderGroup>(&()))
}

/// The identity of the cluster in the operator's keys.
pub(crate) async fn cluster(client: Client) -> String {
    let system = Api::<Namespace>::all(client).get("kube-system").await.unwrap();
    system.metadata.uid.unwrap()
}

/// Status, reason and message of a condition.
pub(crate) async fn condition(
    groups: &Api<DynamicObject>,
    name: &str,
    kind: &str,
) -> (String, String, String) {
    condition_in(&groups.get(name).await.unwrap().data["status"], kind)
}

/// The same in this status.
pub(crate) fn condition_in(status: &Value, kind: &str) -> (String, String, String) {
    let mut all = status["conditions"].as_array().into_iter().flatten();
    let found = all.find(|condition| condition["type"] == kind);
    let text = |key: &str| found.and_then(|it| it[key].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

pub(crate) fn good_spec() -> Value {
    json!({ "selector": { "matchLabels": { "app": "none" } } })
}

/// A pod with this role label and the stamp.
pub(crate) fn pod(name: &str, app: &str, label: &str, stamp: Option<&DynamicObject>) -> Pod {
    let stamp = stamp.map(|group| json!({ STAMP_ANNOTATION: format!("{}/3", group.uid().unwrap()) }));
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "app": app, label: "active" }, "annotations": stamp },
        "spec": { "containers": [{ "name": "main", "image": "none" }] }
    }))
    .unwrap()
}
