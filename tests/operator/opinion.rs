//! An active pod that its group's owner does not hear, but another replica does.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DynamicObject, PostParams},
};
use serde_json::{Value, json};
use sqlx::{
    Connection as _,
    postgres::{PgConnection, PgListener},
};
use tokio::time::sleep;

use crate::{
    apiserver::ApiServer,
    kubelet::active,
    objects::{condition, group, groups},
    paths::Answering,
    postgres::{self, DEADLINE, Database, PASSWORD, ROLE, eventually},
    replica::Operator,
    sessions::{beats, later, owner},
};

/// How long an owner relies on the answers of others.
const BELIEVED: Duration = Duration::from_mins(2);

/// What an owner says that gives groups to a replica which hears their active pods.
const HANDED_OVER: &str = "another replica hears active pods that this one does not hear";

/// Two pods that answer probes, and a group of them with these times.
async fn answering_group(
    server: &ApiServer,
    namespace: &str,
    health: Value,
) -> (Api<DynamicObject>, Api<Pod>, [Answering; 2]) {
    let client = server.client().await;
    let (groups, pods) = (groups(client.clone(), namespace), Api::<Pod>::namespaced(client, namespace));
    let web = [Answering::start(&pods, "web-0").await, Answering::start(&pods, "web-1").await];
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "health": health });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    (groups, pods, web)
}

/// Starts a replica on the node of one of these pods.
fn on_node_of(
    pod: usize,
    name: &str,
    server: &ApiServer,
    namespace: &str,
    variables: &[(&str, &str)],
) -> Operator {
    let node = format!("node-of-web-{pod}");
    let variables = [variables, &[("LEADERGROUP_NODE", node.as_str())]].concat();
    Operator::start_as(name, server, namespace, &variables)
}

/// Settings with a ttl that is longer than the pause after which a group that was handed over may be claimed back.
fn quick(url: &str) -> [(&str, &str); 3] {
    [("LEADERGROUP_DATABASE_URL", url), ("LEADERGROUP_TTL", "6s"), ("LEADERGROUP_RETRY_INTERVAL", "500ms")]
}

/// The replica that the group falls to, which is on another node than its active pod. Waits until it owns the group.
async fn owner_elsewhere(database: &Database, active_pod: &str) -> usize {
    let elsewhere = usize::from(active_pod == "web-0");
    eventually("the group to go to the replica that it falls to", async || {
        owner(database).await == Some(elsewhere)
    })
    .await;
    elsewhere
}

#[tokio::test]
async fn a_group_moves_to_the_replica_that_hears_its_active_pod_and_only_a_pod_that_nobody_hears_is_replaced()
{
    let server = ApiServer::shared().await;
    let namespace = server.namespace("opinion").await;
    let health = json!({ "silenceTimeout": "3s", "interval": "500ms" });
    let (groups, pods, web) = answering_group(server, &namespace, health).await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let mut replicas = [0, 1].map(|pod| on_node_of(pod, &pod.to_string(), server, &namespace, &quick(&url)));
    let token = async || groups.get("web").await.unwrap().data["status"]["token"].clone();
    eventually("a holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    eventually("two sessions", async || {
        database.number("select count(*) from leadergroup.session").await == 2
    })
    .await;
    let (active_pod, before) = (active(&pods).await.remove(0), token().await);
    let first = owner_elsewhere(&database, &active_pod).await;
    // By then both have probed the active pod.
    later(&database, 16).await;
    let [held, standby] = if active_pod == "web-0" { [0, 1] } else { [1, 0] };
    let other = 1 - first;

    web[held].cut(replicas[first].pid());
    eventually("the other replica to own the group", async || {
        // Without an answer of the other one in time the pod would be replaced, and the group stay.
        assert_eq!(token().await, before, "{}\n{}", replicas[first].log(), replicas[other].log());
        owner(&database).await == Some(other)
    })
    .await;
    assert!(replicas[first].log().contains(HANDED_OVER), "{}", replicas[first].log());
    // It stays there, although it falls to the first one.
    later(&database, 20).await;
    assert_eq!(owner(&database).await, Some(other));
    assert_eq!((active(&pods).await, token().await), (vec![active_pod.clone()], before.clone()));

    // The other one fails to hear it too, so it is replaced.
    web[held].cut(replicas[other].pid());
    let successor = vec![format!("web-{standby}")];
    eventually("another holder", async || active(&pods).await == successor).await;
    let newest = async || groups.get("web").await.unwrap().data["status"]["history"][0].clone();
    eventually("the history", async || newest().await["reason"] == "Silent").await;
    web[held].mend();
    for replica in &mut replicas {
        assert!(replica.end().await.0.success(), "{}", replica.log());
    }
}

/// A program with the least rights that an application needs reads the replicas' questions, and answers them for ever
/// in the name of the other replica.
#[tokio::test]
async fn false_answers_of_an_application_do_not_keep_a_silent_pod_active_for_long() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("forged").await;
    let health = json!({ "silenceTimeout": "2s", "interval": "500ms" });
    let (groups, pods, web) = answering_group(server, &namespace, health).await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let variables = [("LEADERGROUP_DATABASE_URL", url.as_str())];
    let mut replicas = ["0", "1"].map(|name| Operator::start_as(name, server, &namespace, &variables));
    eventually("a holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    let sessions = async || database.number("select count(*) from leadergroup.session where not dead").await;
    eventually("two sessions", async || sessions().await == 2).await;

    let role = format!("app_{}", database.name);
    let rights = format!(
        "create role {role} login password '{PASSWORD}'; grant usage on schema leadergroup to {role}"
    );
    database.sql(&rights).await;
    let application = url.replace(&format!("{ROLE}:"), &format!("{role}:"));
    let mut listener = PgListener::connect(&application).await.unwrap();
    listener.listen("leadergroup_peers").await.unwrap();
    let mut connection = PgConnection::connect(&application).await.unwrap();
    let forger = tokio::spawn(async move {
        let mut sessions = BTreeSet::new();
        loop {
            let message = listener.recv().await.unwrap().payload().to_owned();
            let (peers, question) = message.split_once('\n').unwrap();
            let words: Vec<&str> = question.split(' ').collect();
            if !words[0].starts_with("ask") {
                continue;
            }
            sessions.insert(words[1].to_owned());
            for session in &sessions {
                let answer = format!("{peers}\nvouch {session} {}", words[2..].join(" "));
                let told = sqlx::query("select pg_notify('leadergroup_peers', $1)").bind(answer);
                told.execute(&mut connection).await.unwrap();
            }
        }
    });

    let held = usize::from(active(&pods).await != ["web-0"]);
    for replica in &replicas {
        web[held].cut(replica.pid());
    }
    eventually("an answer to be believed", async || {
        replicas.iter().any(|replica| replica.log().contains(HANDED_OVER))
    })
    .await;
    let successor = vec![format!("web-{}", 1 - held)];
    let deadline = Instant::now() + BELIEVED + DEADLINE;
    while Instant::now() < deadline && active(&pods).await != successor {
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(active(&pods).await, successor, "{}\n{}", replicas[0].log(), replicas[1].log());
    assert!(!forger.is_finished());
    forger.abort();
    for replica in &mut replicas {
        assert!(replica.end().await.0.success(), "{}", replica.log());
    }
}

/// The owner has no free descriptor, so it can send no probe.
#[tokio::test]
async fn a_group_moves_to_another_replica_when_its_owner_cannot_send_probes() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("hindered").await;
    let health = json!({ "silenceTimeout": "3s", "interval": "500ms" });
    let (groups, pods, _web) = answering_group(server, &namespace, health).await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let mut replicas = [0, 1].map(|pod| on_node_of(pod, &pod.to_string(), server, &namespace, &quick(&url)));
    eventually("a holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    let token = async || groups.get("web").await.unwrap().data["status"]["token"].clone();
    let (active_pod, before) = (active(&pods).await, token().await);
    let first = owner_elsewhere(&database, &active_pod[0]).await;
    eventually("two sessions with some heartbeats: both replicas have probed the active pod", async || {
        database.number("select count(*) from leadergroup.session").await == 2 && beats(&database).await >= 16
    })
    .await;
    replicas[first].allow_descriptors(false);
    eventually("the other replica to own the group", async || owner(&database).await == Some(1 - first))
        .await;
    assert!(replicas[first].log().contains(HANDED_OVER), "{}", replicas[first].log());
    assert_eq!((active(&pods).await, token().await), (active_pod, before));
    replicas[first].allow_descriptors(true);
    for replica in &mut replicas {
        assert!(replica.end().await.0.success(), "{}", replica.log());
    }
}

/// The group falls to a replica that does not hear its active pod, while the owner hears it.
#[tokio::test]
async fn a_group_that_falls_to_a_replica_that_does_not_hear_its_active_pod_keeps_it() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("deaf").await;
    let health = json!({ "silenceTimeout": "6s", "interval": "1s" });
    let (groups, pods, web) = answering_group(server, &namespace, health).await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let variables = [
        ("LEADERGROUP_DATABASE_URL", url.as_str()),
        ("LEADERGROUP_TTL", "9s"),
        ("LEADERGROUP_RETRY_INTERVAL", "1s"),
        ("LEADERGROUP_LOG_FILTER", "info,leadergroup::operator=debug"),
    ];
    let start = |name: &str, pod| on_node_of(pod, name, server, &namespace, &variables);
    let token = async || groups.get("web").await.unwrap().data["status"]["token"].clone();
    let mut first = start("0", 0);
    eventually("a holder", async || condition(&groups, "web", "Ready").await.0 == "True").await;
    let (active_pod, before) = (active(&pods).await.remove(0), token().await);
    let held = usize::from(active_pod != "web-0");
    assert!(first.end().await.0.success(), "{}", first.log());

    // A group falls to a replica on another node than its active pod.
    let mut hears = start("1", held);
    eventually("an owner on the active pod's node", async || owner(&database).await == Some(1)).await;
    let mut deaf = start("2", 1 - held);
    web[held].cut(deaf.pid());
    let given = || hears.log().contains("giving groups to the replicas that they fall to");
    eventually("the owner to give the group away", async || given()).await;
    later(&database, 8).await;
    eventually("the first one to own it again", async || owner(&database).await == Some(1)).await;
    let history = groups.get("web").await.unwrap().data["status"]["history"].clone();
    let now = (active(&pods).await, token().await);
    assert!(!hears.log().contains("silent"), "the first one does not hear it either: {}", hears.log());
    assert_eq!(now, (vec![active_pod], before), "{history:#}\n{}", deaf.log());
    assert!(deaf.end().await.0.success(), "{}", deaf.log());
    assert!(hears.end().await.0.success(), "{}", hears.log());
}
