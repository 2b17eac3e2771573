//! Admission webhooks that deny, fail or hang when the operator changes pods: what follows, and how often each is
//! asked. A call of one that hangs takes the webhook's time limit, so the calls are counted, and no time is measured.

use std::net::{IpAddr, Ipv4Addr};

use futures::future::join_all;
use kube::{Client, api::DeleteParams};
use serde_json::json;

use crate::{
    apiserver::{
        ApiServer,
        webhook::{Answer, Scope, Webhook},
    },
    kubelet::{keep_lease, later},
    postgres::{self, eventually},
    replica::Operator,
    web::{Asked, NEXT, OLD, OTHER, Web},
};

/// The time limit of a webhook that hangs, in seconds: a dry run waits for it.
const SHORT: u32 = 1;
/// That of a webhook that answers, however busy the machine is. Without an answer `Ignore` would let the change pass.
const LONG: u32 = 30;
/// The webhook's name, by which messages name it.
const WEBHOOK: &str = "pods.webhook.test";

/// Why the holder is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The kubelet reports that the active pod is not ready.
    Failover,
    /// A switchover to the next pod is requested.
    ToNext,
    /// A switchover is requested that names no pod.
    ToAny,
}
use Cause::{Failover, ToAny, ToNext};

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The next pod becomes active. A webhook that hangs delays each write by its time limit.
    Follows,
    /// The next pod does not become active, and another one does.
    IsPassedOver,
    /// The request is refused. The active pod stays, and the status names the pod and the webhook.
    IsRefused,
    /// The old holder keeps the label, and no other pod becomes active until it has lost it. The condition says so.
    Waits,
}
use Then::{Follows, IsPassedOver, IsRefused, Waits};

/// The pods that a webhook is asked about, and what follows each cause.
type Column = (&'static [usize], &'static [(Cause, Then)]);

/// For webhooks that let every change pass sooner or later.
const PASSES: [Column; 3] = [
    (&[NEXT], &[(Failover, Follows), (ToNext, Follows), (ToAny, Follows)]),
    (&[OLD], &[(Failover, Follows), (ToNext, Follows)]),
    (&[OLD, NEXT, OTHER], &[(Failover, Follows), (ToNext, Follows)]),
];
/// For webhooks that make the API server refuse every change.
const REFUSES: [Column; 3] = [
    (&[NEXT], &[(Failover, IsPassedOver), (ToNext, IsRefused), (ToAny, IsPassedOver)]),
    (&[OLD], &[(Failover, Waits), (ToNext, IsRefused)]),
    (&[OLD, NEXT, OTHER], &[(Failover, Waits), (ToNext, IsRefused)]),
];
/// What a webhook answers, its `failurePolicy`, and what follows if it is asked about the next pod, about the old
/// holder, or about all pods.
const TABLE: [(Answer, &str, [Column; 3]); 7] = [
    (Answer::Deny(403), "Fail", REFUSES),
    (Answer::Deny(403), "Ignore", REFUSES),
    (Answer::Fail, "Fail", REFUSES),
    (Answer::Fail, "Ignore", PASSES),
    (Answer::Hang, "Fail", REFUSES),
    (Answer::Hang, "Ignore", PASSES),
    (Answer::BadPatch, "Ignore", REFUSES),
];

/// A webhook, and a group for each cause.
struct Cell {
    /// What it is about, for messages.
    what: String,
    client: Client,
    namespace: String,
    answer: Answer,
    failure_policy: &'static str,
    asked: &'static [usize],
    webs: Vec<(Cause, Then, Web)>,
}

impl Cell {
    async fn create(
        client: &Client,
        namespace: String,
        node: &str,
        (answer, failure_policy): (Answer, &'static str),
        (asked, causes): Column,
    ) -> Self {
        let mut webs = Vec::new();
        for (cause, then) in causes {
            let name = format!("{cause:?}").to_lowercase();
            webs.push((*cause, *then, Web::create(client, &namespace, &name, node, asked).await));
        }
        let what = format!("{answer:?}, {failure_policy}, pods {asked:?}");
        Self { what, client: client.clone(), namespace, answer, failure_policy, asked, webs }
    }

    async fn play(&self) {
        join_all(self.webs.iter().map(|(.., web)| web.at_rest())).await;
        let probe = self.webs[0].2.pod(self.asked[0]);
        let limit = if self.answer == Answer::Hang { SHORT } else { LONG };
        let mutates = self.answer == Answer::BadPatch;
        let rule = (mutates, self.failure_policy, limit);
        let webhook = webhook(&self.client, &self.namespace, rule, &probe).await;
        webhook.set(self.answer);
        join_all(self.webs.iter().map(async |(cause, then, web)| {
            match cause {
                Failover => web.fails().await,
                ToNext => web.request(Some(NEXT)).await,
                ToAny => web.request(None).await,
            }
            self.comes_about(&webhook, *cause, *then, web).await;
        }))
        .await;
        for (_, then, web) in &self.webs {
            if *then == IsRefused {
                self.says_why(web);
            }
        }
        webhook.lift(&probe).await.unwrap();
        for (_, then, web) in &self.webs {
            if *then == Waits {
                web.were_active(&self.what, &[OLD, NEXT]).await;
            }
        }
    }

    async fn comes_about(&self, webhook: &Webhook, cause: Cause, then: Then, web: &Web) {
        let what = format!("{}: {cause:?}", self.what);
        match then {
            Follows => web.were_active(&what, &[OLD, NEXT]).await,
            IsPassedOver => web.were_active(&what, &[OLD, OTHER]).await,
            IsRefused => {
                let is_refused = async || web.status()["switchover"]["result"] == "Refused";
                eventually(&format!("{what}: a refusal"), is_refused).await;
                assert_eq!(web.actives(), [vec![], vec![OLD]], "{what}");
                assert_eq!(web.told("Ready").0, "True", "{what}");
            }
            Waits => {
                let old = web.pod(OLD);
                eventually(&format!("{what}: the condition"), async || {
                    let (status, reason, message) = web.told("Active");
                    let says = message.contains(&format!("\"{old}\" still has the active label"));
                    status == "False" && reason == "WriteRefused" && says && message.contains(self.words())
                })
                .await;
                eventually(&format!("{what}: a repetition"), async || web.asked(webhook).len() > 1).await;
                assert_eq!(web.actives(), [vec![], vec![OLD]], "{what}");
            }
        }
        self.costs(&what, &web.asked(webhook), cause, then);
    }

    /// What the webhook was asked about by then. Each write waits for it once, and dry runs come before a planned
    /// change only. These are repeated if they are refused while a request waits, or if they are not answered in time.
    fn costs(&self, what: &str, asked: &[Asked], cause: Cause, then: Then) {
        let is_planned = cause != Failover;
        let first = asked.first().map(|it| it.is_dry);
        assert_eq!(first, Some(is_planned), "{what}: {asked:?}");
        let mut expected = 0;
        for (pod, role) in [(OLD, "standby"), (NEXT, "active")] {
            let times = |is_dry: bool| {
                asked.iter().filter(|it| (it.is_dry, it.pod, &*it.role) == (is_dry, pod, role)).count()
            };
            let most = if self.answer == Answer::Hang { usize::MAX } else { 3 };
            let (tries, writes) = match then {
                _ if !self.asked.contains(&pod) => (0..=0, 0..=0),
                Follows if is_planned => (1..=most, 1..=1),
                Follows => (0..=0, 1..=1),
                IsPassedOver | IsRefused if is_planned => (1..=most, 0..=0),
                // The pod is tried again after a pause.
                IsPassedOver | IsRefused => (0..=1, 1..=1),
                Waits if pod == OLD => (0..=0, 2..=usize::MAX),
                Waits => (0..=0, 0..=0),
            };
            assert!(tries.contains(&times(true)), "{what}: {pod} is to be {role}: {asked:?}");
            assert!(writes.contains(&times(false)), "{what}: {pod} is to be {role}: {asked:?}");
            expected += times(true) + times(false);
        }
        assert_eq!(asked.len(), expected, "{what}: {asked:?}");
    }

    /// The words by which messages show that it is about the webhook.
    fn words(&self) -> &'static str {
        if self.answer == Answer::BadPatch { "operation does not apply" } else { WEBHOOK }
    }

    /// The status names the pod and the webhook that caused a refusal, for as long as it reports the refusal.
    fn says_why(&self, web: &Web) {
        let request = web.status()["switchover"]["message"].as_str().unwrap().to_owned();
        // That the active pod could not lose its label is no lasting condition of the group.
        let (pod, text) =
            if self.asked.contains(&NEXT) { (NEXT, web.told("Redundant").2) } else { (OLD, request) };
        // Of several refused pods the condition names one, and counts the others.
        let names = text.contains(&web.pod(pod)) || text.contains("(and 1 more) cannot become active");
        assert!(names && text.contains(self.words()), "{}: {text}", self.what);
    }
}

/// A webhook for the pods of this namespace that it is to be asked about.
async fn webhook(
    client: &Client,
    namespace: &str,
    (mutates, policy, limit): (bool, &str, u32),
    probe: &str,
) -> Webhook {
    let pods = json!({ "asked": "yes" });
    let scope = Scope { namespace, pods: &pods, mutates, failure_policy: policy, timeout_seconds: limit };
    Webhook::start(client.clone(), IpAddr::V4(Ipv4Addr::LOCALHOST), &scope, probe).await.unwrap()
}

#[tokio::test]
async fn each_answer_of_a_webhook_has_one_consequence_for_each_change_of_holder() {
    const NODE: &str = "node-of-webhooks";
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let kubelet = keep_lease(client.clone(), NODE).await;
    let cells =
        TABLE.iter().flat_map(|(answer, policy, columns)| columns.map(|column| (*answer, *policy, column)));
    let cells = join_all(cells.map(async |(answer, policy, column)| {
        let namespace = server.namespace("webhooks").await;
        Cell::create(&client, namespace, NODE, (answer, policy), column).await
    }));
    let cells = cells.await;
    assert_eq!(cells.len(), 21);
    let namespaces: Vec<_> = cells.iter().map(|cell| cell.namespace.as_str()).collect();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespaces.join(","), &database.url());
    join_all(cells.iter().map(Cell::play)).await;
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_webhook_that_hangs_delays_one_group_and_no_write_is_given_up_before_its_time_limit() {
    const NODE: &str = "node-of-hanging";
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let kubelet = keep_lease(client.clone(), NODE).await;
    let (one, two) = (server.namespace("hanging").await, server.namespace("elsewhere").await);
    let hanging = Web::create(&client, &one, "hanging", NODE, &[OLD]).await;
    let others = [
        Web::create(&client, &one, "beside", NODE, &[]).await,
        Web::create(&client, &two, "elsewhere", NODE, &[]).await,
    ];
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &format!("{one},{two}"), &database.url());
    for web in others.iter().chain([&hanging]) {
        web.at_rest().await;
    }
    let webhook = webhook(&client, &one, (false, "Fail", LONG), &hanging.pod(OLD)).await;
    webhook.set(Answer::Hang);
    hanging.fails().await;
    eventually("the webhook to be asked", async || webhook.asked() > 0).await;
    for web in &others {
        web.fails().await;
        web.were_active(&web.name, &[OLD, NEXT]).await;
    }
    // Longer than a call without a webhook may take.
    later(client.clone(), NODE, 10).await;
    assert_eq!(
        (hanging.actives(), webhook.asked()),
        (vec![vec![], vec![OLD]], 1),
        "it waits for the webhook"
    );
    webhook.set(Answer::Allow);
    hanging.were_active("hanging", &[OLD, NEXT]).await;
    assert_eq!(hanging.asked(&webhook), [], "the first write was stored");
    webhook.lift(&hanging.pod(OLD)).await.unwrap();
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_webhook_that_fails_or_hangs_does_not_keep_a_deleted_group() {
    const NODE: &str = "node-of-deleted";
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let kubelet = keep_lease(client.clone(), NODE).await;
    let webs = join_all([Answer::Fail, Answer::Hang].map(async |answer| {
        let namespace = server.namespace("deleted").await;
        let web = Web::create(&client, &namespace, "web", NODE, &[OLD, NEXT, OTHER]).await;
        (answer, namespace, web)
    }))
    .await;
    let namespaces: Vec<_> = webs.iter().map(|(_, namespace, _)| namespace.as_str()).collect();
    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(server, &namespaces.join(","), &database.url());
    join_all(webs.iter().map(async |(answer, namespace, web)| {
        web.at_rest().await;
        let webhook = webhook(&client, namespace, (false, "Fail", 5), &web.pod(OLD)).await;
        webhook.set(*answer);
        web.groups.delete("web", &DeleteParams::default()).await.unwrap();
        let is_gone = async || web.groups.get_opt("web").await.unwrap().is_none();
        eventually(&format!("{answer:?}: the end"), is_gone).await;
        webhook.lift(&web.pod(OLD)).await.unwrap();
    }))
    .await;
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
