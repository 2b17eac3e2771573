//! Probes that cannot be carried out.

use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    apiserver::ApiServer,
    kubelet::report,
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

#[tokio::test]
async fn a_probe_that_cannot_be_carried_out_is_a_condition_and_an_event_until_it_can_be() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("unprobed").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let pod = json!({
        "metadata": { "name": "web-0", "labels": { "app": "web" } },
        "spec": { "nodeName": "node-of-unprobed", "containers": [{
            "name": "main", "image": "none", "readinessProbe": { "httpGet": { "port": "nope" } },
        }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    report(&pods, "web-0", "True").await;
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());

    let probed = async || condition(&groups, "web", "Probed").await;
    eventually("the condition", async || probed().await.1 == "ProbeUnusable").await;
    let (status, _, message) = probed().await;
    assert_eq!(status, "False");
    for part in
        ["web-0 cannot be probed: no container has a port named `nope`", "within lock.ttl", "after 40s"]
    {
        assert!(message.contains(part), "{part} in {message}");
    }
    let events = Api::<Event>::namespaced(client, &namespace);
    let notes = async || -> Vec<String> {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let unusable = events.into_iter().filter(|event| event.reason.as_deref() == Some("ProbeUnusable"));
        unusable.filter_map(|event| event.note).collect()
    };
    eventually("the event", async || notes().await == [message.clone()]).await;

    // A probe of the group's own takes the place of the pod's. The pod has no address yet.
    let spec = json!({ "spec": { "health": { "probe": { "httpGet": { "port": 80 } } } } });
    groups.patch("web", &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
    eventually("the other reason", async || probed().await.2.contains("ready but has no address")).await;
    let address = json!({ "status": { "podIP": "198.18.0.9", "podIPs": [{ "ip": "198.18.0.9" }] } });
    pods.patch_status("web-0", &PatchParams::default(), &Patch::Merge(address)).await.unwrap();
    eventually("it can be probed", async || probed().await.0 == "True").await;
    let spec = json!({ "spec": { "health": { "probe": { "httpGet": null, "tcpSocket": { "port": 80 } } } } });
    groups.patch("web", &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
    eventually("the limit of TCP", async || probed().await.1 == "TcpOnly").await;
    assert_eq!(probed().await.0, "True");
    assert_eq!(notes().await.len(), 1, "one event tells of the problem");
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
