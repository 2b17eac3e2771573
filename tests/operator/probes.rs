//! Probes that cannot be carried out, because of the pods or because of the operator.

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
    paths::Answering,
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
    for part in [
        "web-0 cannot be probed: no container has a port named `nope`",
        "within health.silenceTimeout",
        "after 40s",
    ] {
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
    eventually("the other reason", async || {
        probed().await.2.contains("web-0 cannot be probed: the pod has no address")
    })
    .await;
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

#[tokio::test]
async fn an_operator_that_cannot_send_probes_says_so_and_does_not_blame_the_pods() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("hindered-alone").await;
    let (groups, pods) = (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client, &namespace));
    let _web = [Answering::start(&pods, "web-0").await, Answering::start(&pods, "web-1").await];
    let health = json!({ "silenceTimeout": "2s", "interval": "200ms" });
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "health": health });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    let seen = async |kind| condition(&groups, "web", kind).await;
    eventually("it is probed", async || seen("Redundant").await.0 == "True").await;
    assert_eq!(seen("Probed").await.0, "True");

    operator.allow_descriptors(false);
    eventually("the condition", async || seen("Probed").await.1 == "CannotProbe").await;
    let (status, _, message) = seen("Probed").await;
    assert_eq!(status, "False");
    assert!(message.contains("not the cause") && message.contains("RLIMIT_NOFILE"), "{message}");
    eventually("no standby", async || seen("Redundant").await.0 == "False").await;
    let (_, _, message) = seen("Redundant").await;
    assert!(message.contains("RLIMIT_NOFILE") && !message.contains("check the pods"), "{message}");
    assert_eq!(seen("Active").await.0, "True", "the active pod keeps the role");

    operator.allow_descriptors(true);
    eventually("it probes again", async || seen("Probed").await.0 == "True").await;
    eventually("a standby", async || seen("Redundant").await.0 == "True").await;
    let void = |line: &&str| line.starts_with("leadergroup_probes_total{outcome=\"void\"}");
    let metrics = operator.get("/metrics");
    assert!(metrics.lines().find(void).is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
