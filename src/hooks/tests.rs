use futures::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::{
    api::{Reason, Role},
    health::Stream,
};

/// The network of one pod.
struct Pods {
    /// What a connection finds; an error if it is not accepted.
    answers: Mutex<Option<io::Result<DuplexStream>>>,
    asked: Mutex<Vec<SocketAddr>>,
}

impl Pods {
    fn new(answer: io::Result<DuplexStream>) -> Self {
        Self { answers: Mutex::new(Some(answer)), asked: Mutex::default() }
    }
}

impl Network for Pods {
    fn connect(&self, pod: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        self.asked.lock().push(pod);
        let answer = self.answers.lock().take();
        async move {
            match answer {
                Some(answer) => answer.map(|stream| Box::new(stream) as Box<dyn Stream>),
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

fn pod() -> Pod {
    let pod = json!({
        "metadata": { "name": "web-1", "uid": "u" },
        "spec": { "containers": [{ "name": "web", "ports": [{ "name": "admin", "containerPort": 8081 }] }] },
        "status": { "podIP": "198.18.0.7" },
    });
    serde_json::from_value(pod).expect("a pod")
}

fn spec(hook: &Value) -> LeaderGroupSpec {
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "hooks": { "promote": hook } });
    serde_json::from_value(spec).expect("a spec")
}

/// Sends the promote hook to the pod.
async fn promote(pods: &Pods, hook: &Value) -> Result<(), HookError> {
    let spec = spec(hook);
    let change = RoleChange {
        role: Role::Active,
        namespace: "shop",
        group: "web",
        pod: "web-1",
        uid: "u",
        key: "k",
        token: 7,
        reason: Reason::Switchover,
    };
    let hook = spec.hooks.as_ref().and_then(|hooks| hooks.of(Role::Active)).expect("a hook");
    tell(pods, &pod(), &spec, hook, &change).await
}

/// A pod that answers with this text.
fn answering(answer: &'static str) -> (Pods, tokio::task::JoinHandle<String>) {
    let (ours, mut theirs) = duplex(16 * 1024);
    let server = tokio::spawn(async move {
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            if theirs.read_buf(&mut request).await.expect("a request") == 0 {
                break;
            }
        }
        theirs.write_all(answer.as_bytes()).await.expect("an answer");
        String::from_utf8(request).expect("text")
    });
    (Pods::new(Ok(ours)), server)
}

fn hook() -> Value {
    json!({ "path": "/promote?x=1", "port": "admin" })
}

#[tokio::test]
async fn the_request_is_a_post_to_the_named_port_with_the_change_as_its_body() {
    let (pods, server) = answering("HTTP/1.1 204 No Content\r\n\r\n");
    promote(&pods, &hook()).await.expect("it was told");
    assert_eq!(*pods.asked.lock(), ["198.18.0.7:8081".parse().expect("an address")]);
    let request = server.await.expect("a request");
    let (head, body) = request.split_once("\r\n\r\n").expect("head and body");
    assert!(head.starts_with("POST /promote?x=1 HTTP/1.1\r\n"), "{head}");
    for line in ["host: 198.18.0.7:8081", "content-type: application/json", "connection: close"] {
        assert!(head.to_ascii_lowercase().contains(line), "{line} in {head}");
    }
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(
        (&body["role"], &body["token"], &body["reason"]),
        (&json!("active"), &json!(7), &json!("Switchover"))
    );
}

#[tokio::test]
async fn only_a_status_of_success_counts() {
    for (answer, words) in [
        ("HTTP/1.1 302 Found\r\nlocation: /other\r\n\r\n", "HTTP 302"),
        ("HTTP/1.1 500 Oops\r\ncontent-length: 3\r\n\r\nno!", "HTTP 500"),
        ("SSH-2.0-x\r\n", "POST http://198.18.0.7:8081/promote?x=1: "),
        ("", "POST http://198.18.0.7:8081/promote?x=1: "),
    ] {
        let (pods, _server) = answering(answer);
        let error = promote(&pods, &hook()).await.expect_err(answer).to_string();
        assert!(error.contains(words), "{answer:?}: {error}");
        assert!(!error.contains("no!"), "the response's body is not repeated: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_answer_in_time_was_not_told() {
    let (ours, _theirs) = duplex(16 * 1024);
    let begun = tokio::time::Instant::now();
    let mut slow = hook();
    slow["timeout"] = json!("2s");
    let error = promote(&Pods::new(Ok(ours)), &slow).await.expect_err("no answer");
    assert!(error.to_string().ends_with("no answer within 2s"), "{error}");
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_network_is_gone_costs_one_second() {
    let begun = tokio::time::Instant::now();
    let silent = Pods { answers: Mutex::new(None), asked: Mutex::default() };
    let error = promote(&silent, &hook()).await.expect_err("no connection");
    assert!(error.to_string().starts_with("no connection to 198.18.0.7:8081"), "{error}");
    assert_eq!(begun.elapsed(), CONNECT);
    let refused = Pods::new(Err(io::ErrorKind::ConnectionRefused.into()));
    assert!(matches!(promote(&refused, &hook()).await, Err(HookError::Connect { .. })));
}

#[tokio::test]
async fn only_the_pods_own_address_is_called() {
    let port = json!({ "path": "/promote", "port": "metrics" });
    let (pods, _server) = answering("");
    let error = promote(&pods, &port).await.expect_err("no such port").to_string();
    assert!(error.contains("no container has a port named `metrics`"), "{error}");
    let mut loopback = pod();
    loopback.status.as_mut().expect("a status").pod_ip = Some("127.0.0.1".to_owned());
    let spec = spec(&hook());
    assert!(matches!(
        address(
            &loopback,
            &spec,
            &spec.hooks.as_ref().expect("hooks").promote.as_ref().expect("a hook").port
        ),
        Err(ProbeRefusal::ForbiddenAddress(_))
    ));
    assert_eq!(*pods.asked.lock(), []);
}

#[tokio::test]
async fn each_path_that_is_valid_can_be_called() {
    for path in ["/", "//other.example/x", "/%zz", "/a?b=c&d=@:1", "/a;b,c=d~e!f$g(h)*i+j"] {
        let (pods, server) = answering("HTTP/1.1 204 No Content\r\n\r\n");
        let hook = json!({ "path": path, "port": 8080 });
        assert!(spec(&hook).validate().is_ok(), "{path}");
        promote(&pods, &hook).await.expect(path);
        let request = server.await.expect("a request");
        assert!(request.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{request}");
    }
    for path in ["/a<b", "/a>b", "/`", "/\"", "/{id}", "/a#b", "/a\\b", "/^|~", "/a b", "a", "", "/ä"] {
        assert!(spec(&json!({ "path": path, "port": 8080 })).validate().is_err(), "{path}");
    }
}
