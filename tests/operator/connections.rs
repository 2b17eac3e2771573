//! How many connections a replica needs.

use std::fs;

use futures::{StreamExt as _, stream};
use kube::api::PostParams;
use serde_json::json;

use crate::{
    apiserver::ApiServer,
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
};

/// More than the operator reports on at a time.
const GROUPS: usize = 200;
/// Changes, background calls, watches; and some that were made at the same moment, or wait for their end.
const MOST: usize = 8;

#[tokio::test]
async fn all_calls_to_the_api_server_share_a_few_connections() {
    let server = ApiServer::start(&[]).await;
    let namespace = server.namespace("connections").await;
    let groups = groups(server.client().await, &namespace);
    let create = |number: usize| {
        let spec = json!({ "selector": { "matchLabels": { "app": format!("app-{number}") } } });
        let groups = &groups;
        async move {
            let object = group(&format!("group-{number}"), &spec);
            groups.create(&PostParams::default(), &object).await.unwrap();
        }
    };
    stream::iter((0..GROUPS).map(create)).buffer_unordered(20).collect::<Vec<_>>().await;

    let (database, _store) = postgres::migrated().await;
    let operator = Operator::start(&server, &namespace, &database.url());
    for number in 0..GROUPS {
        eventually("the group is reported on", || async {
            condition(&groups, &format!("group-{number}"), "Accepted").await.0 == "True"
        })
        .await;
    }
    let connections = connections(operator.pid(), server.port());
    assert!((1..=MOST).contains(&connections), "{connections} connections");
}

/// The process' established connections to this port.
fn connections(pid: u32, port: u16) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let sockets: Vec<String> = links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    // Columns: number, local address, remote address, state (01: established), ..., inode in the tenth.
    let remote = format!(":{port:04X}");
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[2].ends_with(&remote) && row[3] == "01" && sockets.iter().any(|s| s == row[9]))
        .count()
}
