//! How replicas share the groups.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::{
    apiserver::ApiServer,
    kubelet::{keep_lease, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

/// So many that it does not happen that all fall to the same replica.
const GROUPS: usize = 20;

#[tokio::test]
async fn a_replica_that_joins_gets_its_share_and_no_holder_changes() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("balance").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client, "node-of-balance").await;
    run_pod(&pods, "web-0", "node-of-balance").await;
    let create = PostParams::default();
    groups
        .create(&create, &group("web", &json!({ "selector": { "matchLabels": { "app": "web" } } })))
        .await
        .unwrap();
    for index in 1..GROUPS {
        let (name, spec) = (format!("g{index}"), json!({ "selector": { "matchLabels": { "app": "none" } } }));
        groups.create(&create, &group(&name, &spec)).await.unwrap();
    }
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let start =
        |name| Operator::start_as(name, server, &namespace, &[("LEADERGROUP_DATABASE_URL", url.as_str())]);
    // How many groups the replica of this name owns.
    let share = async |name: &str| {
        let owned = format!(
            "select count(*) from leadergroup.lock l join leadergroup.session s on s.id = l.session \
             where not s.dead and split_part(s.name, '/', 2) = '{name}'"
        );
        usize::try_from(database.number(&owned).await).unwrap()
    };
    let mut one = start("1");
    eventually("one replica to own all groups", async || share("1").await == GROUPS).await;
    eventually("the holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    let token = async || groups.get("web").await.unwrap().data["status"]["token"].clone();
    let before = token().await;

    let mut two = start("2");
    eventually("the second replica to get its share", async || {
        let (one, two) = (share("1").await, share("2").await);
        one + two == GROUPS && one > 0 && two > 0
    })
    .await;

    assert!(one.end().await.0.success(), "{}", one.log());
    eventually("the second replica to own all groups", async || share("2").await == GROUPS).await;
    let mut three = start("3");
    eventually("the third replica to get its share", async || {
        let (two, three) = (share("2").await, share("3").await);
        two + three == GROUPS && two > 0 && three > 0
    })
    .await;
    assert_eq!(token().await, before, "no holder changed");
    kubelet.abort();
    assert!(two.end().await.0.success(), "{}", two.log());
    assert!(three.end().await.0.success(), "{}", three.log());
}

#[tokio::test]
async fn two_installations_with_one_database_do_not_disturb_each_other() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (a, b) = (server.namespace("install-a").await, server.namespace("install-b").await);
    let groups = groups(client.clone(), &a);
    for index in 0..GROUPS {
        let (name, spec) = (format!("g{index}"), json!({ "selector": { "matchLabels": { "app": "none" } } }));
        groups.create(&PostParams::default(), &group(&name, &spec)).await.unwrap();
    }
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let start = |name, namespace: &str| {
        Operator::start_as(name, server, namespace, &[("LEADERGROUP_DATABASE_URL", url.as_str())])
    };
    let owned = async || {
        let owned = "select count(*) from leadergroup.lock l join leadergroup.session s on s.id = l.session \
                     where not s.dead";
        usize::try_from(database.number(owned).await).unwrap()
    };
    let mut one = start("1", &a);
    eventually("one replica to own all groups", async || owned().await == GROUPS).await;
    let mut two = start("2", &b);
    let beats = async || database.number("select min(beat) from leadergroup.session where not dead").await;
    let sessions = async || database.number("select count(*) from leadergroup.session where not dead").await;
    eventually("the other installation", async || sessions().await == 2).await;
    // Long enough for groups to be given to a replica that joined.
    eventually("some heartbeats", async || {
        assert_eq!(owned().await, GROUPS, "a group has no owner");
        beats().await >= 16
    })
    .await;
    assert!(one.end().await.0.success(), "{}", one.log());
    assert!(two.end().await.0.success(), "{}", two.log());
}
