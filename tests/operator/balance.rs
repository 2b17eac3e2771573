//! How replicas share the groups.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, Database, eventually},
    replica::Operator,
    sessions::{beats, later},
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

/// The group `web` with a pod on each of two nodes, and a replica on each of them.
struct TwoNodes {
    groups: Api<DynamicObject>,
    pods: Api<Pod>,
    database: Database,
    nodes: [&'static str; 2],
    replicas: [Operator; 2],
    kubelets: [AbortHandle; 2],
}

impl TwoNodes {
    async fn start(namespace: &str, nodes: [&'static str; 2], spec: &Value) -> Self {
        let server = ApiServer::shared().await;
        let client = server.client().await;
        let namespace = server.namespace(namespace).await;
        let (groups, pods) =
            (groups(client.clone(), &namespace), Api::namespaced(client.clone(), &namespace));
        let kubelets = [keep_lease(client.clone(), nodes[0]).await, keep_lease(client, nodes[1]).await];
        for (pod, node) in ["web-0", "web-1"].into_iter().zip(nodes) {
            run_pod(&pods, pod, node).await;
        }
        groups.create(&PostParams::default(), &group("web", spec)).await.unwrap();
        let (database, _store) = postgres::migrated().await;
        let url = database.url();
        let replicas = nodes.map(|node| {
            let variables = [
                ("LEADERGROUP_DATABASE_URL", url.as_str()),
                ("LEADERGROUP_NODE", node),
                ("LEADERGROUP_RETRY_INTERVAL", "500ms"),
            ];
            Operator::start_as(node, server, &namespace, &variables)
        });
        eventually("a holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
        Self { groups, pods, database, nodes, replicas, kubelets }
    }

    /// The number of the active pod, which is that of its node.
    async fn active(&self) -> Option<usize> {
        let active = active(&self.pods).await;
        let [name] = &active[..] else { return None };
        name.strip_prefix("web-")?.parse().ok()
    }

    async fn status(&self) -> Value {
        self.groups.get("web").await.unwrap().data["status"].clone()
    }

    /// Waits until the replica on the node with this number owns the group.
    async fn owned_on(&self, node: usize) {
        let web = format!("s.place = '{}' and l.key like '%/web'", self.nodes[node]);
        eventually("the other owner", async || owned(&self.database, &web).await == 1).await;
    }

    /// Waits for as many heartbeats of both replicas.
    async fn heartbeats(&self, count: i64) {
        later(&self.database, count).await;
    }

    async fn end(mut self) {
        for replica in &mut self.replicas {
            assert!(replica.end().await.0.success(), "{}", replica.log());
        }
        self.kubelets.iter().for_each(AbortHandle::abort);
    }
}

/// A replica that is lost together with the active pod could not notice its loss.
#[tokio::test]
async fn a_group_goes_to_a_replica_on_another_node_than_its_active_pod() {
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    let web = TwoNodes::start("apart", ["apart-0", "apart-1"], &spec).await;
    create_without_pods(&web.groups, GROUPS).await;
    // Each way, so that at most one of them is by chance.
    for term in 1..=3 {
        let active = web.active().await.unwrap();
        web.owned_on(1 - active).await;
        // It is not elsewhere because the other replica owns nothing.
        let others = format!("s.place = '{}'", web.nodes[active]);
        eventually("both to own groups", async || owned(&web.database, &others).await > 0).await;
        let patch =
            json!({ "metadata": { "annotations": { "leadergroup.dev/switchover": term.to_string() } } });
        web.groups.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        eventually("the switchover", async || {
            web.active().await == Some(1 - active) && web.status().await["token"].as_i64() > Some(term)
        })
        .await;
        assert_eq!(web.status().await["token"], term + 1, "no other change of holder");
    }
    web.end().await;
}

/// The replica that replaces a pod gives the group away, because the next pod is on its own node. The next owner must
/// not give the role back to the pod that failed.
#[tokio::test]
async fn a_replica_that_gets_a_group_knows_which_pod_has_failed() {
    let spec = json!({
        "selector": { "matchLabels": { "app": "web" } },
        "election": {
            "priorities": [{ "podLabels": { "preferred": "yes" }, "weight": 1 }],
            "failback": "WhenReady",
            "failbackDelay": "0s",
        },
    });
    let web = TwoNodes::start("failed", ["failed-0", "failed-1"], &spec).await;
    let preferred = web.active().await.unwrap();
    let name = format!("web-{preferred}");
    let label = Patch::Merge(json!({ "metadata": { "labels": { "preferred": "yes" } } }));
    web.pods.patch(&name, &PatchParams::default(), &label).await.unwrap();
    web.owned_on(1 - preferred).await;
    report(&web.pods, &name, "False").await;
    eventually("a failover", async || web.active().await == Some(1 - preferred)).await;
    report(&web.pods, &name, "True").await;
    web.owned_on(preferred).await;
    // The new owner would have given the role back by now.
    web.heartbeats(8).await;
    let owned_at = jiff::Timestamp::now();
    eventually("both to be eligible", async || web.status().await["eligibleSummary"] == "2/2").await;
    let status = web.status().await;
    let changes = status["history"].as_array().unwrap();
    let at = |change: &Value| change["time"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let failover = changes.iter().rev().find(|change| change["from"] == name).expect("the failover");
    // A minute later it may go back. The times are in whole seconds.
    let earliest = at(failover) + Duration::from_secs(59);
    assert!(owned_at < earliest, "the new owner got the group too late to show anything: {status:#}");
    let later = |change: &&Value| change["token"].as_i64() > failover["token"].as_i64();
    let soon = changes.iter().filter(later).find(|change| change["to"] == name && at(change) < earliest);
    assert_eq!(soon, None, "{status:#}");
    web.end().await;
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
    let sessions = async || database.number("select count(*) from leadergroup.session where not dead").await;
    eventually("the other installation", async || sessions().await == 2).await;
    // Long enough for groups to be given to a replica that joined.
    eventually("some heartbeats", async || {
        assert_eq!(owned().await, GROUPS, "a group has no owner");
        beats(&database).await >= 16
    })
    .await;
    assert!(one.end().await.0.success(), "{}", one.log());
    assert!(two.end().await.0.success(), "{}", two.log());
}
