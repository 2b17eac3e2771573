//! Objects as they look in a cluster, for the tests of this room.

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{cluster::Seen, operator::NAMESPACES};
use crate::api::LeaderGroup;

/// The time of all tests.
pub(super) fn now() -> Timestamp {
    at("2026-11-20T12:00:00Z")
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

pub(super) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of this type")
}

/// The text without colours.
pub(super) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-20T11:55:48Z",
    })
}

/// Sets a condition.
pub(super) fn set(group: &mut LeaderGroup, kind: &str, status: &str, reason: &str, message: &str) {
    let conditions = &mut group.status.as_mut().expect("a status").conditions;
    conditions.retain(|one| one.type_ != kind);
    conditions.push(object(condition(kind, status, reason, message)));
}

/// A healthy group of three pods. web-1 is active.
pub(super) fn web() -> LeaderGroup {
    object(json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": { "namespace": "shop", "name": "web", "generation": 2, "uid": "6f1c" },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
        "status": {
            "observedGeneration": 2,
            "active": { "pod": "web-1", "uid": "u1", "node": "node-2", "since": "2026-11-18T08:00:00Z" },
            "token": 7, "eligible": 3, "replicas": 3, "eligibleSummary": "3/3",
            "history": [
                {
                    "token": 7, "from": "web-0", "to": "web-1", "reason": "Silent", "time": "2026-11-18T08:00:00Z",
                    "duration": "5s41ms",
                },
                {
                    "token": 6, "from": "web-2", "to": "web-0", "reason": "Switchover", "time": "2026-11-10T08:00:00Z",
                    "duration": "87ms",
                },
            ],
            "conditions": [
                condition("Accepted", "True", "AsExpected", "the spec is valid"),
                condition("Active", "True", "Active", "web-1 is active"),
                condition("Redundant", "True", "AsExpected", "2 pods could take over"),
                condition("Routed", "True", "AsExpected", "the pods carry the labels of the declared term"),
                condition("Probed", "True", "AsExpected", "the operator probes the pods"),
                condition("LockStoreReachable", "True", "AsExpected", "PostgreSQL is reachable"),
                condition("Ready", "True", "Active", "web-1 is active"),
                condition("Stalled", "False", "AsExpected", "no action is needed"),
            ],
        },
    }))
}

/// The same without an active pod: none of its pods is eligible.
pub(super) fn without_active() -> LeaderGroup {
    let mut group = web();
    let why = "none of 3 pods could be active; check that they are ready and answer their probe";
    set(&mut group, "Active", "False", "NoEligiblePod", why);
    set(&mut group, "Ready", "False", "NoEligiblePod", why);
    let other = "no other pod could take over now; check the pods that are not ready, or add replicas";
    set(&mut group, "Redundant", "False", "NoStandby", other);
    let status = group.status.as_mut().expect("a status");
    (status.active, status.eligible, status.eligible_summary) = (None, 0, "0/3".to_owned());
    group
}

/// A pod of the group.
pub(super) fn pod(name: &str, role: &str, ready: &str) -> Pod {
    object(json!({
        "metadata": {
            "name": name, "labels": { "app": "web", "leadergroup.dev/role": role },
            "creationTimestamp": "2026-11-17T12:00:00Z",
        },
        "spec": { "nodeName": "node-2", "containers": [{ "name": "main" }] },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": ready, "message": match ready {
                "True" => Value::Null,
                _ => json!("containers with unready status: [main]"),
            } }],
            "containerStatuses": [{
                "name": "main", "restartCount": 1, "ready": ready == "True", "image": "web", "imageID": "web",
                "state": { "running": {} },
            }],
        },
    }))
}

/// The three pods of the group.
pub(super) fn pods() -> Vec<Pod> {
    vec![pod("web-0", "standby", "True"), pod("web-1", "active", "True"), pod("web-2", "standby", "True")]
}

/// A pod whose container crashes again and again.
pub(super) fn crashing(name: &str) -> Pod {
    let mut pod = pod(name, "standby", "False");
    let status = pod.status.as_mut().expect("a status");
    status.container_statuses = Some(vec![object(json!({
        "name": "main", "restartCount": 12, "ready": false, "image": "web", "imageID": "web",
        "state": { "waiting": { "reason": "CrashLoopBackOff" } },
        "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
    }))]);
    pod
}

/// A Service with this selector.
pub(super) fn service(name: &str, selector: &Value) -> Service {
    object(json!({ "metadata": { "name": name }, "spec": { "clusterIP": "10.0.0.1", "selector": selector } }))
}

/// The Service that routes to the active pod.
pub(super) fn good_service() -> Service {
    service("web", &json!({ "app": "web", "leadergroup.dev/role": "active" }))
}

/// A slice of a Service with these pods.
pub(super) fn slice(service: &str, pods: &[&str]) -> EndpointSlice {
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|pod| {
            json!({
                "addresses": ["10.1.0.1"], "conditions": { "ready": true },
                "targetRef": { "kind": "Pod", "name": pod },
            })
        })
        .collect();
    object(json!({
        "metadata": { "name": format!("{service}-x"), "labels": { "kubernetes.io/service-name": service } },
        "addressType": "IPv4", "endpoints": endpoints, "ports": [],
    }))
}

/// Everything about a group that works.
pub(super) fn seen(group: LeaderGroup, pods: Vec<Pod>) -> Seen {
    Seen {
        group,
        pods: Ok(pods),
        services: Ok(vec![good_service(), service("all", &json!({ "app": "web" }))]),
        slices: Ok(vec![slice("web", &["web-1"]), slice("all", &["web-0", "web-1", "web-2"])]),
        events: Ok(Vec::new()),
        node: Ok(None),
        now: now(),
    }
}

/// The Deployment of an operator in this namespace that watches some, or all.
pub(super) fn operator(namespace: &str, ready: i32, watched: &str) -> Deployment {
    object(json!({
        "metadata": { "namespace": namespace, "name": "leadergroup" },
        "spec": {
            "replicas": 2, "selector": {},
            "template": { "spec": { "containers": [{
                "name": "operator", "env": [{ "name": NAMESPACES, "value": watched }],
            }] } },
        },
        "status": { "readyReplicas": ready },
    }))
}
