//! The objects of the tests: groups of three pods, of which the first is active, and the lock's rows of these groups.

use k8s_openapi::api::core::v1::Pod;
use leadergroup_lock::{
    Holder, Key, SessionId, Token,
    controller::{Claimed, LockRow},
};
use serde_json::json;
use uuid::Uuid;

use super::stage::PODS;
use crate::{
    api::{LeaderGroup, PodRef},
    operator::{lock::claim::Answered, object::GroupName},
    ownership::Answer,
};

/// The token of each group's term.
pub(super) const TOKEN: i64 = 5;
const GRANT: Uuid = Uuid::from_u128(7);

pub(super) fn name(group: usize) -> GroupName {
    GroupName { namespace: "shop".into(), name: format!("g{group}").into() }
}

pub(super) fn group_uid(group: usize) -> String {
    format!("uid-g{group}")
}

pub(super) fn pod_ref(group: usize, pod: usize) -> PodRef {
    PodRef { name: format!("g{group}-{pod}"), uid: format!("uid-g{group}-{pod}") }
}

pub(super) fn holder(pod: PodRef) -> Holder {
    Holder { uid: pod.uid, namespace: "shop".to_owned(), name: pod.name }
}

/// The answer to the claim of a group.
pub(super) fn answered(group: usize, claimed: Claimed) -> Answered {
    let answer = Ok(Answer::Lock(Box::new(claimed)));
    Answered { name: name(group), uid: group_uid(group).into(), answer, object: None }
}

/// The lock's row of a group, whose first pod holds it.
pub(super) fn row(group: usize, session: SessionId) -> LockRow {
    LockRow {
        key: Key::new(format!("c1/shop/g{group}")).expect("a key"),
        holder: Some(holder(pod_ref(group, 0))),
        token: Token::new(TOKEN),
        grant: Some(GRANT.into()),
        confirmed: true,
        session: Some(session),
        group: String::new(),
        pending: Vec::new(),
        tombstone: false,
    }
}

pub(super) fn group(group: usize) -> LeaderGroup {
    serde_json::from_value(json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": {
            "namespace": "shop",
            "name": format!("g{group}"),
            "uid": group_uid(group),
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [crate::api::FINALIZER],
        },
        "spec": {
            "selector": { "matchLabels": { "app": format!("g{group}") } },
            "health": {
                "silenceTimeout": "10m", "interval": "1m", "probe": { "tcpSocket": { "port": 8080 } },
            },
        },
        "status": {
            "token": TOKEN,
            "declaration": { "token": TOKEN, "grant": GRANT.to_string(), "holder": pod_ref(group, 0) },
        },
    }))
    .expect("a group")
}

/// This version of a pod. The pods of all groups are spread over so many nodes.
pub(super) fn pod(group: usize, pod: usize, nodes: usize, version: u64, deleting: bool) -> Pod {
    let number = group * PODS + pod;
    // Of the range for benchmarks, where nobody answers.
    let [.., high, low] = number.to_be_bytes();
    let PodRef { name, uid } = pod_ref(group, pod);
    let role = if pod == 0 { "active" } else { "standby" };
    let mut annotations = json!({ "leadergroup.dev/stamp": format!("{}/{TOKEN}", group_uid(group)) });
    if pod == 0 {
        annotations["leadergroup.dev/fencing-token"] = format!("c1/shop/g{group}/{TOKEN}").into();
    }
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": uid,
            "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
            "labels": { "app": format!("g{group}"), "leadergroup.dev/role": role },
            "annotations": annotations,
        },
        "spec": { "nodeName": format!("node-{}", number % nodes), "containers": [{ "name": "main" }] },
        "status": {
            "phase": "Running",
            "podIP": format!("198.18.{high}.{low}"),
            "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "ContainersReady", "status": "True" },
            ],
            "containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
            }],
        },
    }))
    .expect("a pod")
}
