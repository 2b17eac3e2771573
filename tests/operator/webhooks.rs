//! Admission webhooks that deny, fail or hang when the operator changes pods.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::ROLE_LABEL;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::{
    apiserver::{
        ApiServer,
        webhook::{Answer, Scope, Webhook},
    },
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

const PODS: [&str; 3] = ["web-0", "web-1", "web-2"];

/// The time limit of a webhook that hangs.
const LIMIT: Duration = Duration::from_secs(5);

/// A group of three pods at rest. Each pod has its name as the label `pod`.
struct Stage {
    client: Client,
    namespace: String,
    groups: Api<DynamicObject>,
    pods: Api<Pod>,
    kubelet: AbortHandle,
    operator: Operator,
    _database: postgres::Database,
}

impl Stage {
    async fn new(name: &'static str) -> Self {
        let server = ApiServer::shared().await;
        let client = server.client().await;
        let namespace = server.namespace(name).await;
        let (groups, pods) =
            (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
        let kubelet = keep_lease(client.clone(), name).await;
        for pod in PODS {
            run_pod(&pods, pod, name).await;
            let labels = Patch::Merge(json!({ "metadata": { "labels": { "pod": pod } } }));
            pods.patch(pod, &PatchParams::default(), &labels).await.unwrap();
        }
        let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
        groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
        let (database, _store) = postgres::migrated().await;
        let operator = Operator::start(server, &namespace, &database.url());
        let stage = Self { client, namespace, groups, pods, kubelet, operator, _database: database };
        stage.at_rest().await;
        stage
    }

    async fn at_rest(&self) {
        eventually("rest", async || {
            let all = self.pods.list(&ListParams::default()).await.unwrap();
            let labelled = all.iter().filter(|pod| {
                pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(ROLE_LABEL))
            });
            labelled.count() == PODS.len()
                && self.active().await.len() == 1
                && condition(&self.groups, "web", "Ready").await.0 == "True"
        })
        .await;
    }

    async fn active(&self) -> Vec<String> {
        active(&self.pods).await
    }

    /// The active pod, and the other ones.
    async fn roles(&self) -> (String, Vec<String>) {
        let active = self.active().await.remove(0);
        let others = PODS.into_iter().filter(|name| *name != active).map(str::to_owned).collect();
        (active, others)
    }

    /// A webhook for pods with these labels.
    async fn webhook(
        &self,
        pods: &Value,
        failure_policy: &str,
        timeout_seconds: u32,
        probe: &str,
    ) -> Webhook {
        let scope = Scope { namespace: &self.namespace, pods, failure_policy, timeout_seconds };
        Webhook::start(self.client.clone(), IpAddr::V4(Ipv4Addr::LOCALHOST), &scope, probe).await.unwrap()
    }

    /// Makes this pod the first choice of the election. Its label `pod` is its name.
    async fn prefer(&self, pod: &str) {
        let election = json!({ "priorities": [{ "weight": 10, "podLabels": { "pod": pod } }] });
        let patch = Patch::Merge(json!({ "spec": { "election": election } }));
        let generation =
            self.groups.patch("web", &PatchParams::default(), &patch).await.unwrap().metadata.generation;
        let seen = async || self.status().await["observedGeneration"].as_i64() == generation;
        eventually("the priority to be seen", seen).await;
        // A pod that was refused comes last, whatever its priority.
        eventually("the pod not to be refused", async || {
            let (_, _, message) = condition(&self.groups, "web", "Redundant").await;
            !message.contains(pod)
        })
        .await;
    }

    async fn switch_over(&self, to: &str) {
        let request = json!({ "leadergroup.dev/switchover": to, "leadergroup.dev/switchover-to": to });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": request } }));
        self.groups.patch("web", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn status(&self) -> Value {
        self.groups.get("web").await.unwrap().data["status"].clone()
    }

    async fn becomes_active(&self, names: &[String]) {
        eventually("another pod to be active", async || {
            let now = self.active().await;
            now.len() == 1 && names.contains(&now[0])
        })
        .await;
    }

    async fn end(mut self) {
        self.kubelet.abort();
        assert!(self.operator.end().await.0.success(), "{}", self.operator.log());
    }
}

#[tokio::test]
async fn a_webhook_that_fails_for_the_next_pod_costs_nobody_the_label_and_stops_no_failover() {
    let stage = Stage::new("webhook-next").await;
    let (first, others) = stage.roles().await;
    let webhook = stage.webhook(&json!({ "pod": others[0] }), "Fail", 10, &others[0]).await;
    webhook.set(Answer::Fail);
    stage.switch_over(&others[0]).await;
    eventually("a refusal", async || {
        assert_eq!(stage.active().await, std::slice::from_ref(&first));
        stage.status().await["switchover"]["result"] == "Refused"
    })
    .await;
    let (_, _, message) = condition(&stage.groups, "web", "Redundant").await;
    assert!(message.contains(&others[0]) && message.contains("pods.webhook.test"), "{message}");
    assert_eq!(condition(&stage.groups, "web", "Ready").await.0, "True");

    report(&stage.pods, &first, "False").await;
    stage.becomes_active(&others[1..]).await;
    webhook.lift(&others[0]).await.unwrap();
    stage.end().await;
}

#[tokio::test]
async fn a_planned_change_does_not_begin_if_the_webhook_of_the_active_pod_fails() {
    let stage = Stage::new("webhook-active").await;
    let (first, others) = stage.roles().await;
    let webhook = stage.webhook(&json!({ "pod": first }), "Fail", 10, &first).await;
    webhook.set(Answer::Fail);
    stage.switch_over(&others[0]).await;
    eventually("a refusal", async || stage.status().await["switchover"]["result"] == "Refused").await;
    let status = stage.status().await;
    assert_eq!(status["active"]["pod"], json!(first), "{status}");
    assert!(status["switchover"]["message"].as_str().unwrap().contains(&first), "{status}");

    // It fails. No other pod becomes active before it has lost the label, and the condition says so.
    report(&stage.pods, &first, "False").await;
    eventually("the condition", async || {
        assert_eq!(stage.active().await, std::slice::from_ref(&first));
        let (status, reason, message) = condition(&stage.groups, "web", "Active").await;
        let says = message.contains(&format!("{first} still has the active label"));
        status == "False" && reason == "WriteRefused" && says && message.contains("pods.webhook.test")
    })
    .await;
    webhook.lift(&first).await.unwrap();
    stage.becomes_active(&others).await;
    stage.end().await;
}

#[tokio::test]
async fn a_webhook_that_hangs_delays_a_failover_by_its_own_time_limit() {
    let stage = Stage::new("webhook-hangs").await;
    let (first, others) = stage.roles().await;
    // The API server stores each write when the webhook's time is up.
    let webhook = stage.webhook(&json!({ "app": "web" }), "Ignore", 5, &first).await;
    webhook.set(Answer::Hang);
    let began = Instant::now();
    report(&stage.pods, &first, "False").await;
    stage.becomes_active(&others).await;
    assert!(webhook.asked() > 0 && began.elapsed() >= LIMIT, "the change did not wait for the webhook");
    webhook.lift(&first).await.unwrap();
    report(&stage.pods, &first, "True").await;
    stage.at_rest().await;

    // It refuses the writes to one of the pods then: the first choice. A pod that has just failed is none.
    let (now, mut others) = stage.roles().await;
    others.sort_by_key(|name| *name == first);
    stage.prefer(&others[0]).await;
    let webhook = stage.webhook(&json!({ "pod": others[0] }), "Fail", 5, &others[0]).await;
    webhook.set(Answer::Hang);
    let began = Instant::now();
    report(&stage.pods, &now, "False").await;
    stage.becomes_active(&others[1..]).await;
    let (asked, took) = (webhook.asked(), began.elapsed());
    let status = stage.status().await;
    assert!(asked > 0 && took >= LIMIT, "{others:?}: asked {asked} times, took {took:?}: {status:#}");
    webhook.lift(&others[0]).await.unwrap();
    stage.end().await;
}

#[tokio::test]
async fn a_webhook_that_fails_or_hangs_does_not_keep_a_deleted_group() {
    for (name, answer) in [("webhook-deletion", Answer::Fail), ("webhook-deletion-hangs", Answer::Hang)] {
        let stage = Stage::new(name).await;
        let (first, _) = stage.roles().await;
        let webhook = stage.webhook(&json!({ "app": "web" }), "Fail", 5, &first).await;
        webhook.set(answer);
        stage.groups.delete("web", &DeleteParams::default()).await.unwrap();
        eventually("the end", async || stage.groups.get_opt("web").await.unwrap().is_none()).await;
        webhook.lift(&first).await.unwrap();
        stage.end().await;
    }
}
