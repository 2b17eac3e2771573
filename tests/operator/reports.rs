//! Who writes a group's status, and what.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::{Value, json};

use crate::{
    account::Account,
    apiserver::ApiServer,
    kubelet::{active, keep_lease, later, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, Server, eventually},
    replica::Operator,
    versions::Versions,
};

/// Every status of a group from now on.
fn watched(groups: &Api<DynamicObject>, name: &str) -> Versions<Value> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    Versions::watch(groups.clone(), config, |object| object.data["status"].clone())
}

fn ready(status: &Value) -> String {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    ready.map(|ready| format!("{} {}", ready["status"], ready["reason"])).unwrap_or_default()
}

/// What pages somebody: the active pod fails, and no other one can take over.
#[tokio::test]
async fn the_metrics_tell_an_outage_although_a_pod_is_labelled_active() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let database = postgres::database().await;
    let namespace = server.namespace("paged").await;
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let kubelet = keep_lease(client.clone(), "node-of-paged").await;
    run_pod(&pods, "web-0", "node-of-paged").await;
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups(client, &namespace).create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let mut operator = Operator::start(server, &namespace, &database.url());
    let shows = |lines: &[&str]| {
        let page = operator.get("/metrics");
        let of_group = format!("{{namespace=\"{namespace}\",name=\"web\"");
        lines.iter().all(|line| {
            let (name, rest) = line.split_once(' ').unwrap();
            page.lines().any(|shown| shown == format!("leadergroup_{name}{of_group}{rest}"))
        })
    };
    let healthy = [
        r#"group_condition ,type="Ready",status="true"} 1"#,
        "active_works } 1",
        "active_pods } 1",
        "eligible_pods } 1",
        "fencing_token } 1",
        r#"holder_changes_total ,kind="other"} 1"#,
    ];
    eventually("the group is Ready", || async { shows(&healthy) }).await;
    report(&pods, "web-0", "False").await;
    let down = [
        r#"group_condition ,type="Ready",status="false"} 1"#,
        "active_works } 0",
        "active_pods } 1",
        "eligible_pods } 0",
    ];
    eventually("the group is not Ready", || async { shows(&down) }).await;
    let lost = |page: &str| {
        let line = page.lines().find(|line| line.starts_with("leadergroup_outage_seconds_total{"));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).unwrap_or_default()
    };
    let before = lost(&operator.get("/metrics"));
    eventually("the outage lasts", || async { lost(&operator.get("/metrics")) >= before + 1.0 }).await;
    report(&pods, "web-0", "True").await;
    eventually("the group is Ready again", || async { shows(&healthy[..4]) }).await;
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn two_replicas_do_not_contradict_each_other_about_a_group_whose_key_becomes_free() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let namespace = server.namespace("one-key").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client.clone(), "node-of-one-key").await;
    run_pod(&pods, "web-0", "node-of-one-key").await;
    let start =
        |name| Operator::start_as(name, server, &namespace, &[("LEADERGROUP_DATABASE_URL", url.as_str())]);
    let (mut one, mut two) = (start("1"), start("2"));
    let spec =
        |app: &str| json!({ "selector": { "matchLabels": { "app": app } }, "lock": { "key": "shared" } });
    groups.create(&PostParams::default(), &group("first", &spec("none"))).await.unwrap();
    eventually("the first group's owner", async || condition(&groups, "first", "Accepted").await.0 == "True")
        .await;
    groups.create(&PostParams::default(), &group("second", &spec("web"))).await.unwrap();
    eventually("the second group's report", async || {
        condition(&groups, "second", "Accepted").await.1 == "KeyInUse"
    })
    .await;

    groups.delete("first", &DeleteParams::default()).await.unwrap();
    let seen = watched(&groups, "second");
    eventually("the second group's holder", async || condition(&groups, "second", "Ready").await.0 == "True")
        .await;
    let version = async || groups.get("second").await.unwrap().resource_version();
    let before = version().await;
    // Until then each replica has asked the lock again.
    later(client, "node-of-one-key", 14).await;
    let readiness: Vec<_> = seen.all().iter().map(ready).collect();
    assert_eq!(version().await, before, "the status is no longer written; {readiness:?}");
    let after = readiness.iter().skip_while(|ready| !ready.starts_with("\"True\""));
    assert!(
        after.clone().count() > 0 && after.clone().all(|ready| ready.starts_with("\"True\"")),
        "{readiness:?}"
    );
    assert_eq!(ready(&groups.get("second").await.unwrap().data["status"]), "\"True\" \"Active\"");
    kubelet.abort();
    assert!(one.end().await.0.success(), "{}", one.log());
    assert!(two.end().await.0.success(), "{}", two.log());
}

#[tokio::test]
async fn a_replica_that_sees_no_pods_says_nothing_about_a_group_of_another_one() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let namespace = server.namespace("half-blind").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client.clone(), "node-of-half-blind").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-half-blind").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let variables = [("LEADERGROUP_DATABASE_URL", url.as_str())];
    let mut owner = Operator::start_as("owner", server, &namespace, &variables);
    eventually("the group to be ready", async || {
        groups.get("web").await.unwrap().data["status"]["eligibleSummary"] == "2/2"
    })
    .await;
    let before = groups.get("web").await.unwrap().data["status"].clone();

    let account = Account::new(server, &namespace).await;
    account.let_report_in(&namespace).await;
    let mut blind = account.start(server, &[&namespace], &url);
    eventually("it sees the group and no pods", async || {
        blind.log().lines().any(|line| line.contains("HTTP 403") && line.contains("Pods"))
    })
    .await;
    // An outage is reported after ten seconds.
    later(client.clone(), "node-of-half-blind", 26).await;
    let edit = json!({ "metadata": { "annotations": { "example.com/edited": "yes" } } });
    groups.patch("web", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
    later(client, "node-of-half-blind", 6).await;
    assert_eq!(groups.get("web").await.unwrap().data["status"], before);

    // A group that nobody has reported on.
    owner.kill();
    groups.create(&PostParams::default(), &group("new", &spec)).await.unwrap();
    eventually("the reason why nothing happens", async || {
        condition(&groups, "new", "Active").await.1 == "WatchFailed"
    })
    .await;
    assert!(blind.end().await.0.success(), "{}", blind.log());
    kubelet.abort();
}

#[tokio::test]
async fn while_the_database_is_away_a_status_says_that_and_keeps_what_is_known() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let namespace = server.namespace("away").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client.clone(), "node-of-away").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-away").await;
    }
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let own_server = Server::start(&[]);
    let (database, _store) = own_server.migrated().await;
    let url = database.url();
    let start =
        |name| Operator::start_as(name, server, &namespace, &[("LEADERGROUP_DATABASE_URL", url.as_str())]);
    let (mut one, mut two) = (start("1"), start("2"));
    let status = async || groups.get("web").await.unwrap().data["status"].clone();
    eventually("the group to be ready", async || {
        active(&pods).await.len() == 1 && status().await["eligibleSummary"] == "2/2"
    })
    .await;
    let before = status().await;
    assert_eq!(ready(&before), "\"True\" \"Active\"");

    let seen = watched(&groups, "web");
    own_server.stop();
    eventually("the outage to be reported", async || {
        condition(&groups, "web", "LockStoreReachable").await.0 == "False"
    })
    .await;
    // Until then the other replica has found the outage too.
    later(client, "node-of-away", 10).await;
    let token = |status: &Value| status.to_string().matches("is active with token 1").count();
    let unreachable = |status: &Value| {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.any(|it| it["type"] == "LockStoreReachable" && it["status"] == "False")
    };
    eventually("the watch to show the outage", async || seen.all().iter().any(unreachable)).await;
    for status in seen.all() {
        let status = &status;
        assert_eq!((ready(status), token(status)), (ready(&before), token(&before)), "{status}");
        for field in ["active", "token", "declaration", "eligibleSummary", "eligible", "replicas", "history"]
        {
            assert_eq!(status[field], before[field], "{field}: {status}");
        }
    }
    own_server.launch();
    own_server.wait_writable();
    eventually("the outage to be over", async || {
        condition(&groups, "web", "LockStoreReachable").await.0 == "True"
    })
    .await;
    assert_eq!(status().await["token"], before["token"], "no holder changed");
    kubelet.abort();
    assert!(one.end().await.0.success(), "{}", one.log());
    assert!(two.end().await.0.success(), "{}", two.log());
}

#[tokio::test]
async fn a_standby_that_comes_and_goes_is_reported_at_intervals_and_its_last_state_is_not_lost() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let namespace = server.namespace("flicker").await;
    let (groups, pods) =
        (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client.clone(), &namespace));
    let kubelet = keep_lease(client.clone(), "node-of-flicker").await;
    for name in ["web-0", "web-1"] {
        run_pod(&pods, name, "node-of-flicker").await;
    }
    let mut operator = Operator::start(server, &namespace, &url);
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
    let reported = async || groups.get("web").await.unwrap().data["status"]["eligibleSummary"].clone();
    eventually("both pods to be eligible", async || reported().await == "2/2").await;
    let standby = if active(&pods).await == ["web-0"] { "web-1" } else { "web-0" };

    let seen = watched(&groups, "web");
    let began = Instant::now();
    // More changes than are written at once.
    for _ in 0..6 {
        report(&pods, standby, "False").await;
        report(&pods, standby, "True").await;
    }
    report(&pods, standby, "False").await;
    eventually("the standby's last state", async || reported().await == "1/2").await;
    eventually("the watch to show it", async || {
        seen.all().last().is_some_and(|last| last["eligibleSummary"] == "1/2")
    })
    .await;
    let written = seen.all().len();
    // The watch shows the first state. Five may be written at once, and then one every 10 s.
    let most = began.elapsed().as_secs() / 10 + 6;
    assert!(u64::try_from(written).unwrap() <= most, "the status was written {written} times, not {most}");
    kubelet.abort();
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
