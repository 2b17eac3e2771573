//! Two groups that select one pod. Each is owned by another replica, and one of the replicas does not see the overlap
//! yet.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use leadergroup::api::{ROLE_LABEL, STAMP_ANNOTATION};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    late::Proxy,
    objects::{condition, group, groups},
    paths::Answering,
    postgres::{self, Database, eventually},
    replica::Operator,
    sessions::later,
    versions::Versions,
};

/// The labels by which the two groups and their Services select pods. Each group has the name of its label.
const MINE: &str = "mine";
const THEIRS: &str = "theirs";

/// A pod at one of its versions.
#[derive(Clone, Debug)]
struct Seen {
    pod: String,
    labels: BTreeMap<String, String>,
    is_stamped: bool,
}

/// Two replicas. The group `mine` is of the one whose watches a test can hold back. Its active pod is `mine-0`.
struct Stage {
    groups: Api<DynamicObject>,
    pods: Api<Pod>,
    versions: Versions<Seen>,
    /// What answers the pods' probes.
    answers: BTreeMap<&'static str, Answering>,
    database: Database,
    proxy: Proxy,
    /// The replica behind the proxy, and the other one.
    late: Operator,
    other: Operator,
}

impl Stage {
    async fn start(name: &str) -> Self {
        let server = ApiServer::shared().await;
        let client = server.client().await;
        let namespace = server.namespace(name).await;
        let (groups, pods) =
            (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
        let versions = Versions::watch(pods.clone(), watcher::Config::default(), |pod: Pod| Seen {
            pod: pod.name_any(),
            labels: pod.labels().clone(),
            is_stamped: pod.annotations().contains_key(STAMP_ANNOTATION),
        });
        let (database, _store) = postgres::migrated().await;
        let (proxy, url) = (Proxy::before(server).await, database.url());
        let (direct, through) = (server.kubeconfig(), proxy.kubeconfig());
        // A group falls to a replica on another node than that of its active pod.
        let replica = |name: &str, kubeconfig: &std::path::Path, node: &str| {
            let variables = [
                ("KUBECONFIG", kubeconfig.to_str().unwrap()),
                ("LEADERGROUP_DATABASE_URL", url.as_str()),
                ("LEADERGROUP_NODE", node),
                ("LEADERGROUP_TTL", "6s"),
                ("LEADERGROUP_RETRY_INTERVAL", "500ms"),
            ];
            Operator::start_as(name, server, &namespace, &variables)
        };
        let late = replica("late", &through, "node-of-theirs-0");
        let other = replica("other", &direct, "node-of-mine-0");
        let answers = BTreeMap::new();
        let mut this = Self { groups, pods, versions, answers, database, proxy, late, other };
        this.run("mine-0", &[MINE]).await;
        this.create_group(MINE).await;
        this.owned(MINE, "late").await;
        this
    }

    /// A group with an active pod. It prefers pods with the label `first`.
    async fn create_group(&self, name: &str) {
        let spec = json!({
            "selector": { "matchLabels": { name: "yes" } },
            "election": { "priorities": [{ "weight": 10, "podLabels": { "first": "yes" } }] },
            "health": { "silenceTimeout": "3s", "interval": "500ms" },
        });
        self.groups.create(&PostParams::default(), &group(name, &spec)).await.unwrap();
        self.until(name, "Active", ("True", "Active")).await;
    }

    async fn owned(&self, group: &str, replica: &str) {
        let owner = format!(
            "select count(*) from leadergroup.lock l join leadergroup.session s on s.id = l.session \
             where not s.dead and l.key like '%/{group}' and split_part(s.name, '/', 2) = '{replica}'"
        );
        eventually(&format!("{replica} to own {group}"), async || self.database.number(&owner).await == 1)
            .await;
    }

    async fn run(&mut self, pod: &'static str, labels: &[&str]) {
        let answers = Answering::start(&self.pods, pod).await;
        self.answers.insert(pod, answers);
        let labels: BTreeMap<_, _> = labels.iter().map(|label| (*label, "yes")).collect();
        self.label(pod, json!(labels)).await;
    }

    async fn label(&self, pod: &str, labels: Value) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        self.pods.patch(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Its connections are refused from now on.
    fn crash(&mut self, pod: &str) {
        drop(self.answers.remove(pod).unwrap());
    }

    async fn until(&self, group: &str, kind: &str, wanted: (&str, &str)) {
        eventually(&format!("{kind} of {group} to be {wanted:?}"), async || {
            let (status, reason, _) = condition(&self.groups, group, kind).await;
            (&*status, &*reason) == wanted
        })
        .await;
    }

    /// Waits until these pods are standbys.
    async fn stand_by(&self, pods: &[&str]) {
        eventually(&format!("{pods:?} to stand by"), async || {
            pods.iter().all(|pod| {
                let seen = self.versions.last(|seen| seen.pod == *pod);
                seen.is_some_and(|seen| seen.is_stamped && seen.labels.contains_key(ROLE_LABEL))
            })
        })
        .await;
    }

    /// The endpoints of a Service that selects the active pods with this label, one entry for each change.
    fn endpoints(&self, label: &str) -> Vec<BTreeSet<String>> {
        let mut all = vec![BTreeSet::new()];
        for seen in self.versions.all() {
            let mut now = all.last().unwrap().clone();
            now.remove(&seen.pod);
            let is_active = seen.labels.get(ROLE_LABEL).is_some_and(|role| role == "active");
            now.extend((is_active && seen.labels.contains_key(label)).then_some(seen.pod));
            if *all.last().unwrap() != now {
                all.push(now);
            }
        }
        all
    }

    async fn serves(&self, label: &str, pods: &[&str]) {
        let wanted: BTreeSet<_> = pods.iter().map(ToString::to_string).collect();
        eventually(&format!("the endpoints of {label} to be {pods:?}"), async || {
            self.endpoints(label).last() == Some(&wanted)
        })
        .await;
    }

    /// The most endpoints that the Service had at a time.
    fn most(&self, label: &str) -> usize {
        self.endpoints(label).iter().map(BTreeSet::len).max().unwrap_or_default()
    }

    async fn end(mut self) {
        for replica in [&mut self.late, &mut self.other] {
            assert!(replica.end().await.0.success(), "{}", replica.log());
        }
    }
}

#[tokio::test]
async fn a_promotion_by_a_replica_that_does_not_see_that_the_pod_is_of_two_groups_now_is_refused() {
    let mut stage = Stage::start("late-label").await;
    stage.run("theirs-0", &[THEIRS]).await;
    stage.create_group(THEIRS).await;
    stage.owned(THEIRS, "other").await;
    stage.run("mine-1", &[MINE, "first"]).await;
    stage.run("mine-2", &[MINE]).await;
    stage.stand_by(&["mine-1", "mine-2"]).await;

    stage.proxy.hold("pods");
    stage.label("mine-1", json!({ THEIRS: "yes" })).await;
    stage.until(THEIRS, "Accepted", ("False", "SelectedByOtherGroup")).await;
    assert_eq!(condition(&stage.groups, MINE, "Accepted").await.0, "True", "its owner sees that, too");
    stage.crash("mine-0");
    stage.serves(MINE, &["mine-2"]).await;
    let metrics = stage.late.get("/metrics");
    // More than one if the pod was changed again between its read and its promotion.
    let refused = "leadergroup_api_writes_total{kind=\"active\",outcome=\"conflict\"} ";
    assert!(metrics.contains(refused), "the promotion of mine-1 was not tried: {metrics}");
    stage.until(MINE, "Accepted", ("False", "SelectedByOtherGroup")).await;
    stage.proxy.release();

    // It is of one group again, and fit to be active.
    stage.label("mine-1", json!({ THEIRS: null })).await;
    stage.until(MINE, "Accepted", ("True", "AsExpected")).await;
    stage.crash("mine-2");
    stage.serves(MINE, &["mine-1"]).await;
    let all = [MINE, THEIRS].map(|label| stage.endpoints(label));
    assert_eq!([MINE, THEIRS].map(|label| stage.most(label)), [1, 1], "{all:?}");
    let in_order = all.map(|changes| changes.into_iter().flatten().collect::<Vec<_>>());
    assert_eq!(in_order, [vec!["mine-0", "mine-2", "mine-1"], vec!["theirs-0"]]);
    stage.end().await;
}

/// A write can be bound to the version of its pod, and not to the absence of a group.
#[tokio::test]
async fn a_group_that_a_replica_does_not_see_yet_gets_one_foreign_endpoint_at_most() {
    let mut stage = Stage::start("late-group").await;
    stage.run("mine-1", &[MINE, THEIRS, "first"]).await;
    stage.run("theirs-0", &[THEIRS, "first"]).await;
    stage.run("theirs-1", &[THEIRS]).await;
    stage.stand_by(&["mine-1"]).await;

    stage.proxy.hold("leadergroups");
    stage.create_group(THEIRS).await;
    stage.serves(THEIRS, &["theirs-0"]).await;
    stage.until(THEIRS, "Accepted", ("False", "SelectedByOtherGroup")).await;
    stage.crash("mine-0");
    stage.serves(MINE, &["mine-1"]).await;
    // The owner of the other group sees the pod, and makes no further one active.
    eventually("the condition of theirs", async || {
        condition(&stage.groups, THEIRS, "Accepted").await.2.contains("While another group has mine-1 active")
    })
    .await;
    stage.crash("theirs-0");
    stage.until(THEIRS, "Active", ("False", "ProbeRefused")).await;
    later(&stage.database, 10).await;
    stage.proxy.release();
    stage.until(MINE, "Accepted", ("False", "SelectedByOtherGroup")).await;
    later(&stage.database, 10).await;
    let all = [MINE, THEIRS].map(|label| stage.endpoints(label));
    assert_eq!([MINE, THEIRS].map(|label| stage.most(label)), [1, 2], "{all:?}");
    stage.serves(THEIRS, &["mine-1", "theirs-0"]).await;

    stage.label("mine-1", json!({ THEIRS: null })).await;
    stage.serves(THEIRS, &["theirs-1"]).await;
    stage.serves(MINE, &["mine-1"]).await;
    for group in [MINE, THEIRS] {
        stage.until(group, "Ready", ("True", "Active")).await;
    }
    stage.end().await;
}

#[tokio::test]
async fn the_active_pod_of_a_group_that_a_replica_does_not_see_yet_keeps_its_label() {
    let mut stage = Stage::start("late-owner").await;
    stage.run("theirs-0", &[THEIRS]).await;
    stage.proxy.hold("leadergroups");
    stage.create_group(THEIRS).await;
    stage.serves(THEIRS, &["theirs-0"]).await;
    stage.label("theirs-0", json!({ MINE: "yes" })).await;
    stage.until(THEIRS, "Accepted", ("False", "SelectedByOtherGroup")).await;
    stage.serves(MINE, &["mine-0", "theirs-0"]).await;
    // Long enough for the owner of the other group, which sees this pod, to take a label off that is not its own.
    later(&stage.database, 10).await;
    stage.proxy.release();
    stage.until(MINE, "Accepted", ("False", "SelectedByOtherGroup")).await;
    later(&stage.database, 10).await;
    assert_eq!(stage.endpoints(THEIRS).len(), 2, "{:?}", stage.endpoints(THEIRS));

    stage.label("theirs-0", json!({ MINE: null })).await;
    for (group, pod) in [(MINE, "mine-0"), (THEIRS, "theirs-0")] {
        stage.until(group, "Ready", ("True", "Active")).await;
        stage.serves(group, &[pod]).await;
    }
    stage.end().await;
}
