//! Tests of claims: groups without an owner, of another replica, or of a database that knows them differently.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use leadergroup_lock::{
    Changed, Key,
    controller::{Claim, Claimed},
};
use serde_json::json;
use tokio::{net::TcpListener, select};

use crate::{
    apiserver::ApiServer,
    objects::{cluster, good_spec, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

#[tokio::test]
async fn a_new_group_whose_writes_hang_does_not_delay_the_claims_of_others() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("hangs").await;
    // A webhook that accepts connections and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let webhook = serde_json::from_value(json!({
        "metadata": { "name": namespace },
        "webhooks": [{
            "name": "hangs.example.com",
            "clientConfig": { "url": format!("https://{}/", listener.local_addr().unwrap()) },
            "rules": [{
                "apiGroups": ["leadergroup.dev"], "apiVersions": ["*"], "operations": ["UPDATE"],
                "resources": ["leadergroups"],
            }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "objectSelector": { "matchLabels": { "hangs": "yes" } },
            "timeoutSeconds": 30,
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    }));
    webhooks.create(&PostParams::default(), &webhook.unwrap()).await.unwrap();
    let groups = groups(client, &namespace);
    let mut hanging = group("a", &good_spec());
    hanging.labels_mut().insert("hangs".to_owned(), "yes".to_owned());
    groups.create(&PostParams::default(), &hanging).await.unwrap();
    groups.create(&PostParams::default(), &group("b", &good_spec())).await.unwrap();
    eventually("the webhook is in force", async || {
        let change = Patch::Merge(json!({ "metadata": { "labels": { "hangs": "yes" } } }));
        let rehearsed = PatchParams::default().dry_run();
        select! {
            _ = groups.patch("a", &rehearsed, &change) => false,
            _ = listener.accept() => true,
        }
    })
    .await;

    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    let owned = "select count(*) from leadergroup.lock where key like '%/b' and session is not null";
    eventually("an owner of the other group", async || database.number(owned).await == 1).await;
    let written = "leadergroup_api_writes_total{kind=\"finalizer\",outcome=";
    let of_a = || operator.log().contains("failed calling webhook");
    let metrics = operator.get("/metrics");
    assert!(!of_a(), "it had to wait for the first one: {metrics}");
    assert!(metrics.contains(written), "{metrics}");
    eventually("an answer to the write to the first", async || of_a()).await;
    // A row is created only for a group that a quorum read has found, with the finalizer on it.
    let rows = "select count(*) from leadergroup.lock where key like '%/a'";
    assert_eq!(database.number(rows).await, 0, "the watch's cache may show a group that is gone");
    webhooks.delete(&namespace, &DeleteParams::default()).await.unwrap();
    let both = "select count(*) from leadergroup.lock where session is not null";
    eventually("an owner of both", async || database.number(both).await == 2).await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

/// Another replica that stays alive, but can no longer decode the group, for example.
#[tokio::test]
async fn a_group_that_a_live_replica_passes_on_is_taken() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (database, store) = postgres::migrated().await;
    let namespace = server.namespace("passed").await;
    let there = groups(client.clone(), &namespace);
    let there = there.create(&PostParams::default(), &group("there", &good_spec())).await.unwrap();
    let cluster = cluster(client).await;
    // It sends no heartbeats, but does not expire during the test.
    let other = store
        .register(&format!("{cluster}/other"), Duration::from_mins(10), Some(&cluster), None)
        .await
        .unwrap()
        .0;
    let key = Key::new(format!("{cluster}/{namespace}/there")).unwrap();
    let claim = Claim {
        key: key.clone(),
        group: format!("{cluster}/{namespace}/there/{}", there.metadata.uid.unwrap()),
        may_create: true,
        supersedes: None,
    };
    assert!(matches!(store.claim(other, &[claim]).await.unwrap()[..], [Claimed::Ours(_)]));
    let mut operator = Operator::start(server, &namespace, &database.url());
    let ready = || async { operator.get("/readyz").starts_with("HTTP/1.1 200") };
    eventually("it works", ready).await;
    let asked = "select count(*) from leadergroup.session where beat > 4 and not dead";
    eventually("it has looked for the owner", || async { database.number(asked).await == 1 }).await;
    let charged = "select count(*) from leadergroup.lock where session is not null";
    assert_eq!(store.unclaim(other, &[key]).await.unwrap(), [Changed::Done]);
    eventually("it has taken the group", || async { database.number(charged).await == 1 }).await;
    let lives = "select count(*) from leadergroup.session where not dead";
    assert_eq!(database.number(lives).await, 2, "the other one lives on");
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_claim_that_fails_is_logged() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("newer").await;
    let groups = groups(client.clone(), &namespace);
    let spec = json!({ "selector": { "matchLabels": { "app": "none" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let owned =
        async || database.number("select count(*) from leadergroup.lock where session is not null").await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    eventually("an owner", async || owned().await == 1).await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
    for (row, word) in [
        ("protocol = 99", "newer operator"),
        ("protocol = 1, tombstone = true", "was deleted, and it exists"),
    ] {
        database.sql(&format!("update leadergroup.lock set session = null, {row}")).await;
        let mut operator = Operator::start(server, &namespace, &database.url());
        eventually("a word about it", async || operator.log().contains(word)).await;
        assert!(operator.end().await.0.success(), "{}", operator.log());
    }
}
