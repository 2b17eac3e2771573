//! The drills of docs/operations.md: a cluster is lost, and its groups come back in another one, with the old database
//! or with an empty one. Two API servers are two clusters.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use leadergroup::api::{FENCING_ANNOTATION, STAMP_ANNOTATION};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    cli,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, Database, eventually},
    replica::Operator,
};

const NAMESPACE: &str = "shop";
const KEY: &str = "orders";

/// A cluster with a group of two pods that are well.
struct Site {
    server: ApiServer,
    groups: Api<DynamicObject>,
    pods: Api<Pod>,
    operator: Option<Operator>,
}

impl Site {
    async fn new(node: &'static str) -> Self {
        let server = ApiServer::start(&[]).await;
        let client = server.client().await;
        let namespace = server.namespace(NAMESPACE).await;
        let (groups, pods) =
            (groups(client.clone(), &namespace), Api::namespaced(client.clone(), &namespace));
        keep_lease(client, node).await;
        for name in ["web-0", "web-1"] {
            run_pod(&pods, name, node).await;
        }
        Self { server, groups, pods, operator: None }
    }

    fn namespace(&self) -> String {
        self.groups.namespace().unwrap().to_owned()
    }

    async fn create_group(&self, lock: Value) {
        let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "lock": lock });
        self.groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    }

    fn operate(&mut self, database: &Database) {
        self.operator = Some(Operator::start(&self.server, &self.namespace(), &database.url()));
    }

    async fn status(&self, field: &str) -> Value {
        self.groups.get("web").await.unwrap().data["status"][field].clone()
    }

    async fn token(&self) -> i64 {
        self.status("token").await.as_i64().unwrap_or_default()
    }

    /// Waits until a pod is active, with the token that the status declares.
    async fn settled(&self) -> i64 {
        eventually("a pod to be active", async || {
            condition(&self.groups, "web", "Ready").await.0 == "True" && active(&self.pods).await.len() == 1
        })
        .await;
        let (token, holder) = (self.token().await, active(&self.pods).await.remove(0));
        let (key, pod) = (self.status("key").await, self.pods.get(&holder).await.unwrap());
        assert_eq!(pod.annotations()[FENCING_ANNOTATION], format!("{}/{token}", key.as_str().unwrap()));
        token
    }

    /// Runs the command. Returns its exit status and what it printed.
    async fn reassign(&self, database: &Database, args: &[&str]) -> (bool, String) {
        let group = format!("{}/web", self.namespace());
        let all = [&["lock", "reassign", "--replica", "test", &group], args].concat();
        cli::run(&self.server, Some(&database.url()), &all).await
    }
}

#[tokio::test]
async fn a_group_of_a_lost_cluster_comes_back_in_another_one_with_the_same_key() {
    let (database, _store) = postgres::migrated().await;
    let mut old = Site::new("node-of-old").await;
    old.create_group(json!({ "key": KEY })).await;
    old.operate(&database);
    let first = old.settled().await;
    let holder = active(&old.pods).await.remove(0);
    report(&old.pods, &holder, "False").await;
    eventually("another holder", async || active(&old.pods).await != [holder.as_str()]).await;
    let last = old.settled().await;
    assert!(last > first);

    let mut new = Site::new("node-of-new").await;
    new.create_group(json!({ "key": KEY })).await;
    new.operate(&database);
    eventually("the key to be in use", async || condition(&new.groups, "web", "Ready").await.1 == "KeyInUse")
        .await;
    let group = format!("{}/web", new.namespace());
    let (explained, text) = cli::run(&new.server, Some(&database.url()), &["explain", &group]).await;
    assert!(explained && text.contains("the key orders belongs to another group: "), "{text}");
    let (done, text) = new.reassign(&database, &[]).await;
    assert!(!done && text.contains("its owner is alive"), "{text}");
    assert!(text.contains("Stop that operator first") && text.contains("--force"), "{text}");
    assert!(active(&new.pods).await.is_empty() && old.settled().await == last, "nothing was changed");

    // The cluster is lost, without a chance to release anything.
    old.operator.take().unwrap().kill();
    let (done, text) = new.reassign(&database, &["--reason", "site A burnt down", "--by", "me"]).await;
    assert!(done && text.contains(&format!("at token {last}")), "{text}");
    let next = new.settled().await;
    assert!(next > last, "{next} follows {last}");
    let ends = "select count(*) from leadergroup.term where end_reason = 'site A burnt down (by me)'";
    assert_eq!(database.number(ends).await, 1);
    let (done, text) = new.reassign(&database, &[]).await;
    assert!(done && text.contains("belongs to") && text.contains("already"), "{text}");

    // It comes back, and changes nothing any more.
    let before = active(&old.pods).await;
    old.operate(&database);
    eventually("the old group to say so", async || {
        condition(&old.groups, "web", "Ready").await.1 == "KeyInUse"
    })
    .await;
    assert_eq!((active(&old.pods).await, old.token().await), (before, last));
    assert_eq!(new.settled().await, next);
    for mut site in [old, new] {
        let operator = site.operator.as_mut().unwrap();
        assert!(operator.end().await.0.success(), "{}", operator.log());
    }
}

#[tokio::test]
async fn a_group_whose_cluster_and_database_are_lost_continues_above_the_stamps_and_the_floor() {
    let (database, _store) = postgres::migrated().await;
    let mut site = Site::new("node-of-site").await;
    // The default key names the cluster, so the key is new as well. No operator runs yet.
    site.create_group(json!({})).await;
    let (done, text) = site.reassign(&database, &[]).await;
    assert!(!done && text.contains("--floor"), "without any token: {text}");
    let (done, text) = site.reassign(&database, &["--floor", "9007199254740993"]).await;
    assert!(!done && text.contains("--floor"), "too large: {text}");

    // The group was restored with its status.
    let status = Patch::Merge(json!({ "status": { "token": 23 } }));
    site.groups.patch_status("web", &PatchParams::default(), &status).await.unwrap();
    let (done, text) = site.reassign(&database, &[]).await;
    assert!(done && text.contains("the largest token that the cluster knows is 23 (status.token)"), "{text}");

    // A pod that was restored with its stamp.
    let stamp = Patch::Merge(json!({ "metadata": { "annotations": { STAMP_ANNOTATION: "old-uid/57" } } }));
    site.pods.patch("web-1", &PatchParams::default(), &stamp).await.unwrap();
    let (done, text) = site.reassign(&database, &["--floor", "41", "--output", "json"]).await;
    assert!(done, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&told["token"], &told["known"]["place"]), (&json!(57), &json!("the pod web-1")), "{told}");
    let (done, text) = site.reassign(&database, &["--floor", "100"]).await;
    assert!(done && text.contains("larger than 100"), "{text}");
    site.operate(&database);
    assert_eq!(site.settled().await, 101);

    // For a group with an active pod the floor is a change of term, which only --force makes while its operator runs.
    let (done, text) = site.reassign(&database, &["--floor", "200"]).await;
    assert!(!done && text.contains("its owner is alive"), "{text}");
    assert_eq!(site.settled().await, 101);
    let operator = site.operator.as_mut().unwrap();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
