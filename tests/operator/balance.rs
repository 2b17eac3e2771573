//! How replicas share the groups.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, run_pod},
    objects::{condition, group, groups},
    postgres::{self, Database, eventually},
    replica::Operator,
};

/// So many that it does not happen that all fall to the same replica.
const GROUPS: usize = 20;

/// How many groups are owned, of those that meet a condition on their row `l` and the owner's session `s`.
async fn owned(database: &Database, condition: &str) -> usize {
    let count = format!(
        "select count(*) from leadergroup.lock l join leadergroup.session s on s.id = l.session \
         where not s.dead and {condition}"
    );
    usize::try_from(database.number(&count).await).unwrap()
}

/// Creates groups that select no pods.
async fn create_without_pods(groups: &Api<DynamicObject>, count: usize) {
    let spec = json!({ "selector": { "matchLabels": { "app": "none" } } });
    for index in 0..count {
        groups.create(&PostParams::default(), &group(&format!("g{index}"), &spec)).await.unwrap();
    }
}

#[tokio::test]
async fn a_replica_that_joins_gets_its_share_and_no_holder_changes() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("balance").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client, "node-of-balance").await;
    run_pod(&pods, "web-0", "node-of-balance").await;
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    create_without_pods(&groups, GROUPS - 1).await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let start =
        |name| Operator::start_as(name, server, &namespace, &[("LEADERGROUP_DATABASE_URL", url.as_str())]);
    // How many groups the replica of this name owns.
    let share = async |name: &str| owned(&database, &format!("split_part(s.name, '/', 2) = '{name}'")).await;
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

/// A replica that is lost together with the active pod could not notice its loss.
#[tokio::test]
async fn a_group_goes_to_a_replica_on_another_node_than_its_active_pod() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("apart").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let nodes = ["apart-0", "apart-1"];
    let mut kubelets = Vec::new();
    for (pod, node) in ["web-0", "web-1"].into_iter().zip(nodes) {
        kubelets.push(keep_lease(client.clone(), node).await);
        run_pod(&pods, pod, node).await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    create_without_pods(&groups, GROUPS - 1).await;
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let start = |index: usize| {
        let variables = [
            ("LEADERGROUP_DATABASE_URL", url.as_str()),
            ("LEADERGROUP_NODE", nodes[index]),
            ("LEADERGROUP_RETRY_INTERVAL", "500ms"),
        ];
        Operator::start_as(&index.to_string(), server, &namespace, &variables)
    };
    let mut replicas = [start(0), start(1)];
    let token = async || groups.get("web").await.unwrap().data["status"]["token"].as_i64();
    eventually("a holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    // Each way, so that at most one of them is by chance.
    for term in 1..=3 {
        let active_pod = active(&pods).await.remove(0);
        let (active_node, other_node) =
            if active_pod == "web-0" { (nodes[0], nodes[1]) } else { (nodes[1], nodes[0]) };
        let web = format!("s.place = '{other_node}' and l.key like '%/web'");
        eventually("an owner elsewhere", async || owned(&database, &web).await == 1).await;
        // It is not elsewhere because the other replica owns nothing.
        let others = format!("s.place = '{active_node}'");
        eventually("both to own groups", async || owned(&database, &others).await > 0).await;
        let patch =
            json!({ "metadata": { "annotations": { "leadergroup.dev/switchover": term.to_string() } } });
        groups.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        eventually("the switchover", async || {
            let now = active(&pods).await;
            now.len() == 1 && now[0] != active_pod && token().await >= Some(term + 1)
        })
        .await;
        assert_eq!(token().await, Some(term + 1), "no other change of holder");
    }
    for replica in &mut replicas {
        assert!(replica.end().await.0.success(), "{}", replica.log());
    }
    kubelets.iter().for_each(tokio::task::AbortHandle::abort);
}

#[tokio::test]
async fn two_installations_with_one_database_do_not_disturb_each_other() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (a, b) = (server.namespace("install-a").await, server.namespace("install-b").await);
    let groups = groups(client.clone(), &a);
    create_without_pods(&groups, GROUPS).await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let start = |name, namespace: &str| {
        Operator::start_as(name, server, namespace, &[("LEADERGROUP_DATABASE_URL", url.as_str())])
    };
    let owned = async || owned(&database, "true").await;
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
