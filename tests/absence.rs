//! A 404 counts as absence only if the API server itself reports that this very object does not exist.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

use std::{net::Ipv4Addr, time::Duration};

use kube::{Client, Config};
use leadergroup::{
    api::{LeaderGroup, PodRef},
    routing::{GroupRef, Router},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// A server that answers everything with 404 and this body.
async fn answering(body: String) -> Router {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap_or(0) > 0 {}
            let head = format!(
                "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    Router::new(Client::try_from(config).unwrap(), Duration::from_secs(30))
}

fn group() -> GroupRef {
    let group: LeaderGroup = serde_json::from_value(json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": { "namespace": "shop", "name": "web", "uid": "u1" },
        "spec": { "selector": { "matchLabels": { "app": "web" } } }
    }))
    .unwrap();
    GroupRef::of(&group).unwrap()
}

fn status(reason: &str, details: &Value) -> String {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
        "message": "not found", "reason": reason, "details": details
    });
    status.to_string()
}

#[tokio::test]
async fn a_group_is_gone_only_if_the_api_server_reports_it() {
    let details = |group: &str, kind: &str, name: &str| json!({ "group": group, "kind": kind, "name": name });
    let own = status("NotFound", &details("leadergroup.dev", "leadergroups", "web"));
    assert!(answering(own).await.group(&group()).await.unwrap().is_none());
    for other in [
        "404 page not found".to_owned(),
        "<html>no such page</html>".to_owned(),
        "{}".to_owned(),
        // The CRD is gone, or not served at the moment.
        status("NotFound", &json!({})),
        status("NotFound", &details("leadergroup.dev", "leadergroups", "db")),
        status("NotFound", &details("", "namespaces", "web")),
        status("NotFound", &details("", "leadergroups", "web")),
        status("", &details("leadergroup.dev", "leadergroups", "web")),
    ] {
        let answer = answering(other.clone()).await.group(&group()).await;
        let error = answer.expect_err(&other);
        assert!(!error.is_refusal(), "{other}: {error}");
    }
}

#[tokio::test]
async fn a_pod_is_gone_only_if_the_api_server_reports_it() {
    let pod = PodRef { name: "web-0".into(), uid: "p1".into() };
    let own = status("NotFound", &json!({ "kind": "pods", "name": "web-0" }));
    assert!(answering(own).await.pod(&group(), &pod).await.unwrap().is_none());
    for other in [
        "404 page not found".to_owned(),
        status("NotFound", &json!({ "kind": "namespaces", "name": "shop" })),
    ] {
        assert!(answering(other.clone()).await.pod(&group(), &pod).await.is_err(), "{other}");
    }
}
