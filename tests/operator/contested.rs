//! A pod that two groups select.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use leadergroup::api::ROLE_LABEL;
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, later, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
    versions::Versions,
};

const NODE: &str = "node-of-contested";

#[tokio::test]
async fn a_pod_of_two_groups_becomes_active_for_neither_and_the_active_one_of_each_stays() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("contested").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client.clone(), NODE).await;
    let label = async |pod: &str, labels: Value| {
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        pods.patch(pod, &PatchParams::default(), &patch).await.unwrap();
    };
    for (pod, of) in [("own", "old"), ("first", "young"), ("second", "young")] {
        run_pod(&pods, pod, NODE).await;
        label(pod, json!({ of: "yes" })).await;
    }
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    let until = async |group: &str, kind: &str, wanted: (&str, &str)| {
        let found = async || {
            let (status, reason, _) = condition(&groups, group, kind).await;
            (&*status, &*reason) == wanted
        };
        eventually(&format!("{kind} of {group} to be {wanted:?}"), found).await;
    };
    for name in ["old", "young"] {
        let spec = json!({ "selector": { "matchLabels": { name: "yes" } } });
        groups.create(&PostParams::default(), &group(name, &spec)).await.unwrap();
        until(name, "Ready", ("True", "Active")).await;
    }
    let mut actives = active(&pods).await;
    actives.retain(|pod| pod != "own");
    let [of_young] = &actives[..] else { panic!("{actives:?}") };
    let shared = if of_young == "first" { "second" } else { "first" };
    let roles = Versions::watch(pods.clone(), watcher::Config::default(), |pod: Pod| {
        let is_active = pod.labels().get(ROLE_LABEL).is_some_and(|role| role == "active");
        (pod.name_any(), is_active)
    });

    // The older group selects the younger one's standby, and loses its own pod.
    label(shared, json!({ "old": "yes" })).await;
    for name in ["old", "young"] {
        until(name, "Accepted", ("False", "SelectedByOtherGroup")).await;
        let message = condition(&groups, name, "Accepted").await.2;
        assert!(message.contains(shared), "{message}");
    }
    pods.delete("own", &DeleteParams::default().grace_period(0)).await.unwrap();
    until("old", "Active", ("False", "SelectedByOtherGroup")).await;
    later(client.clone(), NODE, 6).await;
    assert_eq!(active(&pods).await, [of_young.as_str()]);
    // The younger one does not fail over to it either.
    pods.delete(of_young, &DeleteParams::default().grace_period(0)).await.unwrap();
    until("young", "Active", ("False", "SelectedByOtherGroup")).await;
    later(client, NODE, 6).await;
    assert_eq!(active(&pods).await, [""; 0]);
    assert!(!roles.all().contains(&(shared.to_owned(), true)), "it was active");

    // It belongs to one group.
    label(shared, json!({ "young": null })).await;
    until("old", "Ready", ("True", "Active")).await;
    assert_eq!(active(&pods).await, [shared]);
    until("young", "Accepted", ("True", "AsExpected")).await;

    // An active pod that another group selects, too, stays active, and the other one makes no second pod active.
    label(shared, json!({ "young": "yes" })).await;
    until("young", "Accepted", ("False", "SelectedByOtherGroup")).await;
    run_pod(&pods, "late", NODE).await;
    label("late", json!({ "young": "yes" })).await;
    eventually("the new pod to be eligible", async || {
        groups.get("young").await.unwrap().data["status"]["eligible"] == 1
    })
    .await;
    let (_, reason, message) = condition(&groups, "young", "Accepted").await;
    assert!(message.contains("another group has") && message.contains(shared), "{reason} {message}");
    later(server.client().await, NODE, 6).await;
    assert_eq!(active(&pods).await, [shared]);
    label(shared, json!({ "young": null })).await;
    until("young", "Ready", ("True", "Active")).await;
    assert_eq!(active(&pods).await.len(), 2);
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
