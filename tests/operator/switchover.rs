//! Requested switchovers: the annotation, the command, and what the status and the Events say of them.

use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    cli::run_plugin,
    kubelet::{active, keep_lease, later, report, run_pod},
    objects::{group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

#[tokio::test]
async fn a_request_is_carried_out_once_and_answered_in_the_status() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("switchover").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client.clone(), "node-of-switchover").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-switchover").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let mut operator = Operator::start(server, &namespace, &url);
    let status = async || groups.get("web").await.unwrap().data["status"].clone();
    eventually("the group to be ready", async || status().await["eligibleSummary"] == "2/2").await;
    let first = active(&pods).await.remove(0);
    let second = if first == "web-0" { "web-1" } else { "web-0" };

    // With kubectl, or from a repository.
    let ask = async |annotations: Value| {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        groups.patch("web", &PatchParams::default(), &patch).await.unwrap();
    };
    ask(json!({ "leadergroup.dev/switchover": "before-the-upgrade" })).await;
    eventually("the result", async || status().await["switchover"]["result"] == "Done").await;
    assert_eq!(active(&pods).await, [second]);
    let done = status().await;
    assert_eq!(done["switchover"]["request"], "before-the-upgrade");
    let message = done["switchover"]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("{second} is active with token 2; the change took ")), "{message}");
    let change = (&done["history"][0]["reason"], &done["history"][0]["from"]);
    assert_eq!(change, (&json!("Switchover"), &json!(first)));
    // Another replica, and another change of the object, do not repeat it.
    assert!(operator.end().await.0.success(), "{}", operator.log());
    let mut operator = Operator::start(server, &namespace, &url);
    ask(json!({ "example.com/edited": "yes" })).await;
    eventually("the next replica", async || operator.get("/readyz").starts_with("HTTP/1.1 200")).await;
    later(client.clone(), "node-of-switchover", 6).await;
    assert_eq!((active(&pods).await, &status().await["token"]), (vec![second.to_owned()], &json!(2)));

    // The command.
    let name = format!("{namespace}/web");
    let (ok, text) = run_plugin(server, &["switchover", &name, "--to", &first, "--wait"]).await;
    assert!(ok && text.starts_with(&format!("{first} is active with token 3")), "{text}");
    assert_eq!(active(&pods).await, [first.as_str()]);
    for (to, why) in [("web-7", "the group has no pod named web-7"), (&first, "is active already")] {
        let (ok, text) = run_plugin(server, &["switchover", &name, "--to", to, "--wait"]).await;
        assert!(!ok && text.contains("is refused") && text.contains(why), "{text}");
        assert_eq!(status().await["switchover"]["result"], "Refused");
    }
    report(&pods, second, "False").await;
    eventually("the other pod is not eligible", async || status().await["eligible"] == 1).await;
    let (ok, text) = run_plugin(server, &["switchover", "web", "--namespace", &namespace, "--wait"]).await;
    assert!(!ok && text.contains("no other pod could become active now"), "{text}");
    report(&pods, second, "True").await;
    eventually("the other pod is eligible", async || status().await["eligible"] == 2).await;
    later(client.clone(), "node-of-switchover", 4).await;
    assert_eq!(active(&pods).await, [first.as_str()], "a refused request is not carried out later");

    let events = Api::<Event>::namespaced(client, &namespace);
    eventually("the Events", async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let count = |reason| all.iter().filter(|event| event.reason.as_deref() == Some(reason)).count();
        (count("Switchover"), count("SwitchoverRefused")) == (2, 3)
    })
    .await;
    let (ok, text) = run_plugin(server, &["switchover", &format!("{namespace}/none")]).await;
    assert!(!ok && text.contains("there is no LeaderGroup none in the namespace"), "{text}");
    assert!(operator.end().await.0.success(), "{}", operator.log());
    kubelet.abort();
}
