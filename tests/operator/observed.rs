//! Services whose endpoints Kubernetes writes, and that carry the label of a group.

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::{Value, json};

use crate::{
    account::Account,
    apiserver::ApiServer,
    kubelet::{active, keep_lease, run_pod},
    objects::{condition, condition_in, group, groups},
    postgres::{self, eventually},
    versions::Versions,
};

const OBSERVING: &[(&str, &str)] = &[("LEADERGROUP_OBSERVE_SERVICES", "true")];

/// Waits until the condition Routed has this reason, and a message with these words.
async fn routed(groups: &Api<DynamicObject>, reason: &str, words: &str) {
    eventually(&format!("Routed to say {reason} with {words:?}"), async || {
        let (_, found, message) = condition(groups, "web", "Routed").await;
        found == reason && message.contains(words)
    })
    .await;
}

/// Writes the only slice of the Service `front` as Kubernetes' controller does: with the Service's labels, and this pod
/// as its endpoint.
async fn route_to(slices: &Api<EndpointSlice>, pod: &Pod) {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "front-x7k2p", "labels": {
            "leadergroup.dev/group": "web",
            "kubernetes.io/service-name": "front",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        } },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["198.18.9.40"],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "name": pod.name_any(), "uid": pod.uid() },
        }],
    });
    let controller = PatchParams::apply("endpointslice-controller");
    slices.patch("front-x7k2p", &controller, &Patch::Apply(slice)).await.unwrap();
}

async fn edit(services: &Api<Service>, change: Value) {
    services.patch("front", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

/// The account has the rights that the chart grants by default.
#[tokio::test]
async fn a_labelled_service_is_reported_while_it_does_not_route_to_the_active_pod() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("observed").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let services = Api::<Service>::namespaced(client.clone(), &namespace);
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), &namespace);
    let kubelet = keep_lease(client, "observed").await;
    let (database, _store) = postgres::migrated().await;
    let account = Account::new(server, &namespace).await;
    account.let_into(&namespace).await;
    for pod in ["web-0", "web-1"] {
        run_pod(&pods, pod, "observed").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let service = json!({
        "metadata": { "name": "front", "labels": { "leadergroup.dev/group": "web" } },
        "spec": { "ports": [{ "port": 80 }], "selector": { "app": "web" } }
    });
    services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    let start = || account.start_with(server, &[&namespace], &database.url(), OBSERVING);
    let mut operator = start();

    // The selector is judged at once.
    routed(&groups, "ServiceUnusable", "Service front selects pods whatever their role").await;
    assert_eq!(condition(&groups, "web", "Ready").await.0, "False");
    edit(&services, json!({ "spec": { "selector": { "leadergroup.dev/role": "active" } } })).await;
    eventually("the group to be ready", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    routed(&groups, "AsExpected", "match the declaration").await;

    // A change of the active pod, whose endpoints follow a little later, shows nowhere.
    let former = pods.get(&active(&pods).await[0]).await.unwrap();
    route_to(&slices, &former).await;
    let said = |group: DynamicObject| condition_in(&group.data["status"], "Routed").0;
    let versions = Versions::watch(groups.clone(), watcher::Config::default(), said);
    eventually("the observer", async || !versions.all().is_empty()).await;
    let request = json!({ "metadata": { "annotations": { "leadergroup.dev/switchover": "1" } } });
    groups.patch("web", &PatchParams::default(), &Patch::Merge(request)).await.unwrap();
    let other = if former.name_any() == "web-0" { "web-1" } else { "web-0" };
    eventually("the switchover", async || active(&pods).await == [other]).await;
    let next = pods.get(other).await.unwrap();
    route_to(&slices, &next).await;
    routed(&groups, "AsExpected", "match the declaration").await;
    assert!(versions.all().iter().all(|status| status == "True"), "{:?}", versions.all());

    // Endpoints that stay at the former pod are reported, also by a replica that starts then.
    route_to(&slices, &former).await;
    let words = format!("Service front routes to {}, and {}", former.name_any(), next.name_any());
    routed(&groups, "ServiceMisrouted", &words).await;
    assert_eq!(condition(&groups, "web", "Ready").await.1, "ServiceMisrouted");
    versions.forget();
    operator.kill();
    let mut operator = start();
    let resumed = Patch::Merge(json!({ "spec": { "health": { "failureThreshold": 3 } } }));
    let edited = groups.patch("web", &PatchParams::default(), &resumed).await.unwrap().metadata.generation;
    eventually("the replica to look at the group", async || {
        groups.get("web").await.unwrap().data["status"]["observedGeneration"].as_i64() == edited
    })
    .await;
    eventually("the observer", async || !versions.all().is_empty()).await;
    assert!(versions.all().iter().all(|status| status == "False"), "{:?}", versions.all());

    // A Service without the label is not looked at.
    edit(&services, json!({ "metadata": { "labels": { "leadergroup.dev/group": null } } })).await;
    eventually("Routed", async || condition(&groups, "web", "Routed").await.0 == "True").await;
    assert!(!condition(&groups, "web", "Routed").await.2.contains("front"));
    assert!(operator.end().await.0.success(), "{}", operator.log());
    assert!(!operator.log().contains("a watch failed"), "{}", operator.log());
    kubelet.abort();
}
