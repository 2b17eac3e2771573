//! `leadergroup explain`, beside a replica and without one.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    cli::run,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

#[tokio::test]
async fn it_shows_the_evidence_and_the_next_steps_and_changes_nothing() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("explain").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client, "node-of-explain").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-explain").await;
    }
    report(&pods, "web-1", "False").await;
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let name = format!("{namespace}/web");
    let explained = async || -> Value {
        let (ok, text) = run(server, Some(&url), &["explain", &name, "--output", "json"]).await;
        assert!(ok, "{text}");
        serde_json::from_str(&text).unwrap()
    };

    // Before any replica has seen the group.
    let before = explained().await;
    assert_eq!((&before["lock"], &before["lockProblem"]), (&Value::Null, &Value::Null), "{before}");
    assert_eq!(before["pods"][0]["verdict"], "eligible", "{before}");
    assert_eq!(before["pods"][1]["eligible"], false, "{before}");
    let steps = before["plan"]["steps"].as_array().unwrap();
    assert_eq!(steps[0], "grant token 1 to web-0: FirstHolder", "{before}");
    assert!(steps.iter().any(|step| step == "label web-0 active"), "{before}");
    assert_eq!(database.number("select count(*) from leadergroup.lock").await, 0, "it only reads");
    assert!(active(&pods).await.is_empty(), "it only reads");

    // A replica does what was explained.
    let mut operator = Operator::start(server, &namespace, &url);
    eventually("the holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    assert_eq!(active(&pods).await, ["web-0"]);
    eventually("the confirmation", async || explained().await["lock"]["confirmed"] == true).await;
    let (_, text) = run(server, Some(&url), &["explain", &name]).await;
    for words in
        ["owner:        ", "token 1, held by web-0", "web-1", "next: nothing. The active pod is healthy"]
    {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }

    // Why nothing happens.
    let paused = Patch::Merge(json!({ "spec": { "paused": true } }));
    groups.patch("web", &PatchParams::default(), &paused).await.unwrap();
    report(&pods, "web-0", "False").await;
    report(&pods, "web-1", "True").await;
    eventually("the holder to be unfit", async || {
        explained().await["plan"]["rest"]
            == "The holder must be replaced (PodNotReady), but the group is paused"
    })
    .await;
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn it_says_what_it_could_not_read() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("unexplained").await;
    let missing = format!("{namespace}/missing");
    let (ok, text) = run(server, Some("postgres://nobody@127.0.0.1:1/none"), &["explain", &missing]).await;
    assert!(!ok && text.contains(&format!("there is no LeaderGroup {missing}")), "{text}");

    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    let groups = groups(server.client().await, &namespace);
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let web = format!("{namespace}/web");
    let (ok, text) = run(server, Some("postgres://nobody@127.0.0.1:1/none"), &["explain", &web]).await;
    assert!(ok && text.contains("lock:         not read: ") && text.contains("next: unknown"), "{text}");
}
