//! Tests of an operator that manages only some namespaces, and loses its rights there.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use leadergroup::api::ROLE_LABEL;
use serde_json::json;

use crate::{
    account::Account,
    apiserver::ApiServer,
    objects::{condition, good_spec, group, groups, pod},
    postgres::{self, eventually},
};

#[tokio::test]
async fn a_namespace_without_rights_does_not_affect_the_others() {
    let server = ApiServer::shared().await;
    let (database, _store) = postgres::migrated().await;
    let (good, gone) = (server.namespace("good").await, server.namespace("gone").await);
    let account = Account::new(server, &good).await;
    account.let_into(&good).await;
    let in_good = groups(server.client().await, &good);
    let in_gone = groups(server.client().await, &gone);
    in_good.create(&PostParams::default(), &group("web", &good_spec())).await.unwrap();
    in_gone.create(&PostParams::default(), &group("lost", &good_spec())).await.unwrap();
    let mut operator = account.start(server, &[&gone, &good], &database.url());
    let charged = |name: &str| {
        format!("select count(*) from leadergroup.lock where key like '%/{name}' and session is not null")
    };
    eventually("the group of the other namespace is owned", || async {
        operator.get("/readyz").starts_with("HTTP/1.1 200") && database.number(&charged("web")).await == 1
    })
    .await;
    eventually("the group reports that it is accepted", || async {
        condition(&in_good, "web", "Accepted").await.0 == "True"
    })
    .await;
    let (_, reason, message) = condition(&in_good, "web", "Active").await;
    assert_eq!(reason, "NoPods", "{message}");
    eventually("the failure is logged", || async {
        operator.log().lines().any(|line| line.contains("HTTP 403") && line.contains(&gone))
    })
    .await;
    assert_eq!(database.number(&charged("lost")).await, 0, "without its pods no replica takes the group");

    account.let_into(&gone).await;
    eventually("the right is noticed", || async { database.number(&charged("lost")).await == 1 }).await;
    // A right is removed while the operator runs.
    account.shut_out_of(&gone).await;
    let failures = || operator.log().lines().filter(|line| line.contains("a watch failed")).count();
    let before = failures();
    eventually("it is noticed that it is gone", || async { failures() > before }).await;
    assert!(operator.get("/readyz").starts_with("HTTP/1.1 200"), "{}", operator.get("/readyz"));
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_group_is_deleted_even_if_its_namespace_loses_the_rights_first() {
    let server = ApiServer::shared().await;
    let (database, _store) = postgres::migrated().await;
    let namespace = server.namespace("leaving").await;
    let client = server.client().await;
    let (groups, pods) = (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client, &namespace));
    let account = Account::new(server, &namespace).await;
    account.let_into(&namespace).await;
    for name in ["first", "second"] {
        let spec = json!({ "selector": { "matchLabels": { "app": name } } });
        groups.create(&PostParams::default(), &group(name, &spec)).await.unwrap();
        let pod = pod(&format!("{name}-1"), name, "example.com/unrelated", None);
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let mut operator = account.start(server, &[&namespace], &database.url());
    for name in ["first-1", "second-1"] {
        eventually("its pod is labelled", || async {
            pods.get(name).await.unwrap().labels().contains_key(ROLE_LABEL)
        })
        .await;
    }

    // While the operator runs: its watch does not show the group any more, or it can no longer act.
    account.shut_out_of(&namespace).await;
    groups.delete("first", &DeleteParams::default()).await.unwrap();
    eventually("it is gone", || async { groups.get_opt("first").await.unwrap().is_none() }).await;
    let tombstones = "select count(*) from leadergroup.lock where tombstone";
    assert_eq!(database.number(tombstones).await, 1);

    // After a restart, if the pods can no longer be listed.
    assert!(operator.end().await.0.success(), "{}", operator.log());
    groups.delete("second", &DeleteParams::default()).await.unwrap();
    let mut operator = account.start(server, &[&namespace], &database.url());
    eventually("it is gone, too", || async { groups.get_opt("second").await.unwrap().is_none() }).await;
    assert_eq!(database.number(tombstones).await, 2);
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
