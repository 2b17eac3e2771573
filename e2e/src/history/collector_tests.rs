//! Tests of the collectors with servers that give canned answers: each hole in the answers must be noticed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

const WITHIN: Duration = Duration::from_secs(20);

/// Answers each request with the result of `answer` as the whole body, and closes the connection.
async fn serve(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut chunk = [0; 4096];
                let complete = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let length =
                        head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
                    let length: usize = length.unwrap_or("0").parse().ok()?;
                    (body.len() >= length).then_some(())
                };
                while complete(&request).is_none() {
                    match stream.read(&mut chunk).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => request.extend_from_slice(&chunk[..read]),
                    }
                }
                let (status, body) = answer(&String::from_utf8_lossy(&request));
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            });
        }
    });
    address
}

fn put(revision: i64, key: &str, value: &Value) -> Value {
    json!({ "kv": {
        "key": ByteString(key.into()), "value": ByteString(value.to_string().into()),
        "mod_revision": revision.to_string(),
    }})
}

fn line(events: &[Value]) -> String {
    format!("{}\n", json!({ "result": { "header": { "revision": "9" }, "events": events } }))
}

fn pod(name: &str) -> Value {
    json!({ "metadata": { "name": name, "uid": name, "managedFields": [{}], "labels": { "a": "b" } } })
}

/// An etcd at `revision` that answers consecutive watches with these bodies, and repeats the last one.
async fn etcd(revision: i64, watches: &[String]) -> (String, Arc<Mutex<Vec<String>>>) {
    let left = Mutex::new(VecDeque::from(watches.to_vec()));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&asked);
    let address = serve(move |request| {
        if request.contains("/v3/kv/range") {
            return (200, json!({ "header": { "revision": revision.to_string() } }).to_string());
        }
        requests.lock().expect("no panic").push(request.to_owned());
        let mut left = left.lock().expect("no panic");
        (200, if left.len() > 1 { left.pop_front() } else { left.front().cloned() }.unwrap_or_default())
    });
    (address.await, asked)
}

#[tokio::test]
async fn etcd_is_read_over_broken_connections_without_a_gap() {
    let key = "/registry/pods/ns/a";
    let system = json!({ "metadata": { "uid": "cluster" } });
    let first = line(&[put(2, "/registry/namespaces/kube-system", &system), put(3, key, &pod("a"))]);
    // The second connection starts at the revision at which the first ended, in the middle of a transaction.
    let other_half = put(3, "/registry/pods/ns/b", &pod("b"));
    let deleted = json!({ "type": "DELETE", "kv": { "key": ByteString(key.into()), "mod_revision": "5" } });
    let second =
        line(&[put(3, key, &pod("a")), other_half, put(4, "/registry/secrets/x/y", &Value::Null), deleted]);
    let (address, asked) = etcd(5, &[first, second, String::new()]).await;
    let collector = EtcdCollector::start(&format!("http://{address}"));
    assert_eq!(collector.catch_up(WITHIN).await.expect("no gap"), 5);
    let history = collector.history();
    let seen: Vec<_> =
        history.changes.iter().map(|c| (c.revision, c.id.name.as_str(), c.state.is_some())).collect();
    assert_eq!(seen, [(3, "a", true), (3, "b", true), (5, "a", false)]);
    assert_eq!((history.cluster.as_deref(), history.complete_to, history.baseline), (Some("cluster"), 5, 0));
    assert!(!history.changes[0].raw.contains("managedFields"));
    assert!(asked.lock().expect("no panic")[1].contains("\"start_revision\":\"3\""));
}

#[tokio::test]
async fn etcd_a_missing_revision_is_a_hole() {
    let (address, _) = etcd(5, &[line(&[put(2, "/x", &Value::Null), put(4, "/x", &Value::Null)])]).await;
    let error = EtcdCollector::start(&address).catch_up(WITHIN).await.expect_err("3 is missing");
    assert!(format!("{error:#}").contains("revision 4 follows 2"), "{error:#}");
}

#[tokio::test]
async fn etcd_a_compacted_store_is_a_hole() {
    let cancelled = json!({ "result": {
        "header": { "revision": "90" }, "canceled": true, "cancel_reason": "compacted", "compact_revision": "70",
    }});
    let (address, _) = etcd(90, &[format!("{cancelled}\n")]).await;
    let error = EtcdCollector::start(&address).catch_up(WITHIN).await.expect_err("it was compacted");
    assert!(format!("{error:#}").contains("compacted at 70"), "{error:#}");
}

#[tokio::test]
async fn etcd_what_never_comes_is_not_called_complete() {
    let (address, _) = etcd(7, &[line(&[put(2, "/x", &Value::Null)]), String::new()]).await;
    let collector = EtcdCollector::start(&address);
    let error =
        collector.catch_up(Duration::from_millis(300)).await.expect_err("revisions 3 to 7 never came");
    assert!(format!("{error:#}").contains("did not reach revision 7"), "{error:#}");
}

#[tokio::test]
async fn etcd_anything_but_json_is_refused() {
    let binary = json!({ "kv": {
        "key": ByteString("/registry/pods/ns/a".into()), "value": ByteString(b"k8s\0\n".to_vec()), "mod_revision": "2",
    }});
    let (address, _) = etcd(2, &[line(&[binary])]).await;
    let error = EtcdCollector::start(&address).catch_up(WITHIN).await.expect_err("that is protobuf");
    assert!(format!("{error:#}").contains("--storage-media-type"), "{error:#}");
}

/// An API server at revision 12 with one pod of revision 10. It answers watches of pods with this body.
async fn api_server(watch: String) -> Client {
    let address = serve(move |request| {
        let path = request.split_whitespace().nth(1).unwrap_or_default().to_owned();
        if path.starts_with("/api/v1/namespaces/kube-system") {
            return (200, json!({ "metadata": { "name": "kube-system", "uid": "cluster" } }).to_string());
        }
        let pods = path.starts_with("/api/v1/namespaces/ns/pods");
        if path.contains("watch=true") {
            let bookmark = json!({ "type": "BOOKMARK", "object": {
                "kind": "X", "apiVersion": "v1", "metadata": { "resourceVersion": "12" },
            }});
            let told = if pods { watch.clone() } else { format!("{bookmark}\n") };
            // Only once: a watch that continues from the end gets nothing more.
            return (200, if path.contains("resourceVersion=10") { told } else { String::new() });
        }
        let limited = path.contains("limit=1");
        let mut item = pod("a");
        item["metadata"]["resourceVersion"] = "10".into();
        let items = if pods && !limited { vec![item] } else { vec![] };
        let revision = if limited { "12" } else { "10" };
        let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": revision },
            "items": items });
        (200, list.to_string())
    });
    let url = format!("http://{}", address.await).parse().expect("a URL");
    Client::try_from(Config::new(url)).expect("a client")
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

#[tokio::test]
async fn a_watch_records_until_a_bookmark_says_that_it_saw_everything() {
    let mut changed = pod("a");
    changed["metadata"]["resourceVersion"] = "11".into();
    let end = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": "12" } });
    let client = api_server(event("MODIFIED", &changed) + &event("BOOKMARK", &end)).await;
    let collector = ApiCollector::start(client, "ns").await.expect("it starts");
    assert_eq!(collector.catch_up(WITHIN).await.expect("no gap"), 12);
    let history = collector.history();
    let seen: Vec<_> = history.changes.iter().map(|c| (c.revision, c.id.name.as_str())).take(2).collect();
    assert_eq!(seen, [(10, "a"), (11, "a")]);
    assert_eq!(
        (history.baseline, history.cluster.as_deref(), history.one_clock),
        (10, Some("cluster"), false)
    );
}

#[tokio::test]
async fn a_watch_that_was_told_gone_has_a_hole() {
    let gone = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "too old",
        "reason": "Expired", "code": 410 });
    let client = api_server(event("ERROR", &gone)).await;
    let collector = ApiCollector::start(client, "ns").await.expect("it starts");
    let error = collector.catch_up(WITHIN).await.expect_err("the watch expired");
    assert!(format!("{error:#}").contains("has a hole"), "{error:#}");
}

#[tokio::test]
async fn a_watch_without_a_bookmark_is_not_called_complete() {
    let client = api_server(String::new()).await;
    let collector = ApiCollector::start(client, "ns").await.expect("it starts");
    let error =
        collector.catch_up(Duration::from_millis(300)).await.expect_err("revisions 11 and 12 never came");
    assert!(format!("{error:#}").contains("did not reach revision 12"), "{error:#}");
}
