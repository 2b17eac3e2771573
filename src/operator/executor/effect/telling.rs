//! Tests of hooks: which pod is called, where, and what comes of it.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use super::*;
use crate::{
    health::{Network, Stream},
    operator::{executor::fake_api::FakeApi, object::GroupName},
};

const FIRST: &str = "/api/v1/namespaces/shop/pods/web-0";
const SECOND: &str = "/api/v1/namespaces/shop/pods/web-1";

/// Pods that answer each request with this status; without one they refuse connections.
struct Pods {
    status: Option<u16>,
    /// The addresses, and the requests that arrived.
    called: Mutex<Vec<SocketAddr>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Pods {
    fn new(status: Option<u16>) -> Arc<Self> {
        Arc::new(Self { status, called: Mutex::default(), requests: Arc::default() })
    }

    fn called(&self) -> Vec<String> {
        let called = self.called.lock().expect("no test panics here");
        called.iter().map(SocketAddr::to_string).collect()
    }
}

impl Network for Pods {
    fn connect(&self, pod: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        self.called.lock().expect("no test panics here").push(pod);
        let Some(status) = self.status else {
            return async { Err(io::ErrorKind::ConnectionRefused.into()) }.boxed();
        };
        let (ours, mut theirs) = duplex(16 * 1024);
        let requests = self.requests.clone();
        async move {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"}") && theirs.read_buf(&mut request).await.expect("a request") > 0
                {
                }
                let request = String::from_utf8(request).expect("text");
                requests.lock().expect("no test panics here").push(request);
                let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
                theirs.write_all(answer.as_bytes()).await.expect("an answer");
            });
            Ok(Box::new(ours) as Box<dyn Stream>)
        }
        .boxed()
    }
}

fn pod(name: &str, uid: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": "shop", "name": name, "uid": uid, "resourceVersion": "7" },
        "spec": { "containers": [{ "name": "main" }] },
        "status": { "phase": "Running", "podIP": address },
    })
}

fn pods(names: &[&str]) -> Vec<PodRef> {
    names.iter().map(|name| PodRef { name: (*name).to_owned(), uid: format!("uid-{name}") }).collect()
}

/// Tells these pods that they are standbys; no hook tells pods that they are active.
async fn tell(api: &mut FakeApi, network: &Arc<Pods>, role: Role, names: &[&str]) -> Vec<(String, String)> {
    api.context.pods = network.clone();
    let done = Box::pin(carry_out(&api.context, order(role, names))).await;
    assert!(done.trouble.is_none(), "it is the pods' trouble: {done:?}");
    let Outcome::Told(failed) = done.outcome else { panic!("{done:?}") };
    failed.into_iter().map(|(pod, why)| (pod.name, why)).collect()
}

fn requests(api: &FakeApi, outcome: &str) -> bool {
    let series = format!("leadergroup_hook_requests_total{{hook=\"demote\",outcome=\"{outcome}\"}} 1");
    api.context.metrics.encode().expect("the metrics").contains(&series)
}

#[tokio::test]
async fn each_pod_is_called_at_the_address_that_a_read_shows_now() {
    let mut api = FakeApi::with(vec![
        (FIRST, pod("web-0", "uid-web-0", "198.18.0.9")),
        (SECOND, pod("web-1", "uid-web-1", "198.18.0.8")),
    ]);
    let network = Pods::new(Some(204));
    assert_eq!(tell(&mut api, &network, Role::Standby, &["web-0"]).await, []);
    assert_eq!(api.asked(), [format!("GET {FIRST}")]);
    assert_eq!(network.called(), ["198.18.0.9:8080"]);
    let request = network.requests.lock().expect("no test panics here").concat();
    let body: Value = serde_json::from_str(request.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    let key = body["key"].as_str().expect("a key").to_owned();
    let expected = json!({
        "role": "standby", "namespace": "shop", "group": "web", "pod": "web-0", "uid": "uid-web-0", "key": key,
        "token": 6, "reason": "Switchover",
    });
    assert_eq!(body, expected);
    assert!(key.ends_with("/shop/web"), "{key}");
    assert!(requests(&api, "succeeded"));
}

#[tokio::test]
async fn a_pod_that_is_gone_needs_no_call() {
    for found in [vec![], vec![(FIRST, pod("web-0", "another", "198.18.0.9"))]] {
        let mut api = FakeApi::with(found);
        let network = Pods::new(None);
        assert_eq!(tell(&mut api, &network, Role::Standby, &["web-0"]).await, []);
        assert_eq!(network.called(), [""; 0]);
    }
}

#[tokio::test]
async fn a_role_without_a_hook_needs_no_call() {
    let mut api = FakeApi::with(vec![(FIRST, pod("web-0", "uid-web-0", "198.18.0.9"))]);
    let network = Pods::new(None);
    assert_eq!(tell(&mut api, &network, Role::Active, &["web-0"]).await, []);
    assert_eq!((api.asked(), network.called()), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn each_failure_is_that_of_its_pod() {
    let both = || {
        vec![
            (FIRST, pod("web-0", "uid-web-0", "198.18.0.9")),
            (SECOND, pod("web-1", "uid-web-1", "198.18.0.8")),
        ]
    };
    let mut api = FakeApi::with(both());
    let failed = tell(&mut api, &Pods::new(None), Role::Standby, &["web-0", "web-1"]).await;
    let names: Vec<_> = failed.iter().map(|(pod, _)| pod.as_str()).collect();
    assert_eq!(names, ["web-0", "web-1"]);
    assert!(failed[1].1.starts_with("no connection to 198.18.0.8:8080"), "{failed:?}");
    let mut api = FakeApi::with(vec![(SECOND, pod("web-1", "uid-web-1", "198.18.0.8"))]);
    let failed = tell(&mut api, &Pods::new(Some(503)), Role::Standby, &["web-0", "web-1"]).await;
    assert_eq!(failed.len(), 1);
    assert!(failed[0].0 == "web-1" && failed[0].1.contains("HTTP 503"), "{failed:?}");
    assert!(requests(&api, "failed"));
}

#[tokio::test]
async fn a_call_leaves_its_place_to_others() {
    let mut api = FakeApi::with(vec![(FIRST, pod("web-0", "uid-web-0", "198.18.0.9"))]);
    let left = Arc::new(AtomicUsize::new(0));
    let counted = left.clone();
    api.context.leave_place = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    tell(&mut api, &Pods::new(None), Role::Standby, &["web-0"]).await;
    assert_eq!(left.load(Ordering::Relaxed), 1);
}

/// This machine has no free descriptor, for example.
#[tokio::test]
async fn what_fails_on_this_machine_is_no_failure_of_a_pod() {
    struct Exhausted;
    impl Network for Exhausted {
        fn connect(&self, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
            async { Err(io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error())) }.boxed()
        }
    }
    let mut api = FakeApi::with(vec![(FIRST, pod("web-0", "uid-web-0", "198.18.0.9"))]);
    api.context.pods = Arc::new(Exhausted);
    let done = carry_out(&api.context, order(Role::Standby, &["web-0"])).await;
    assert!(matches!(done.outcome, Outcome::Failed), "{done:?}");
}

/// It says nothing about the pod, as with every other call: the step is repeated.
#[tokio::test]
async fn an_api_server_that_does_not_answer_is_no_failure_of_a_hook() {
    let mut api = FakeApi::with(vec![(FIRST, json!(500))]);
    api.context.pods = Pods::new(Some(204));
    let done = carry_out(&api.context, order(Role::Standby, &["web-0"])).await;
    assert!(matches!(done.outcome, Outcome::Failed), "{done:?}");
}

/// Its address may be another pod's by now.
#[tokio::test]
async fn a_pod_that_has_ended_is_not_called() {
    let mut ended = pod("web-0", "uid-web-0", "198.18.0.9");
    ended["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    ended["metadata"]["finalizers"] = json!(["example.com/backup"]);
    ended["status"]["phase"] = json!("Failed");
    let mut api = FakeApi::with(vec![(FIRST, ended)]);
    let network = Pods::new(Some(204));
    tell(&mut api, &network, Role::Standby, &["web-0"]).await;
    assert_eq!(network.called(), [""; 0]);
}

fn order(role: Role, names: &[&str]) -> Order {
    let object = json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": { "namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "5" },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "hooks": { "demote": { "path": "/demote", "port": 8080 } },
        },
    });
    let object = serde_json::from_value(object).expect("a group");
    let name = GroupName { namespace: "shop".into(), name: "web".into() };
    let record = Arc::new(Record::first(object, name, "c1").expect("it has a name"));
    let effect = Effect::Tell { role, token: 6, reason: Reason::Switchover, pods: pods(names) };
    Order { record, session: None, ticket: 1, effect, trace: None }
}
