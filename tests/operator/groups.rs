//! Tests of groups that cannot be decoded or were deleted unseen.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use leadergroup::api::{FINALIZER, ROLE_LABEL, STAMP_ANNOTATION};
use leadergroup_lock::{
    Key,
    controller::{Claim, Claimed},
};
use serde_json::{Value, json};

use crate::{
    apiserver::ApiServer,
    objects::{cluster, condition, good_spec, group, groups, pod},
    postgres::{self, DEADLINE, eventually},
    replica::Operator,
};

#[tokio::test]
async fn an_undecodable_group_is_reported_and_the_others_are_not_affected() {
    let server = ApiServer::start(&[]).await;
    let client = server.client().await;
    server.take_validation_off().await;
    let namespace = server.namespace("unreadable").await;
    let groups = groups(client, &namespace);
    let bad = json!({ "selector": { "matchLabels": { "app": "web" } }, "deletionPolicy": "Explode" });
    groups.create(&PostParams::default(), &group("bad", &bad)).await.unwrap();
    groups.create(&PostParams::default(), &group("good", &good_spec())).await.unwrap();

    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(&server, &namespace, &database.url());
    eventually("the good one is seen", || async { condition(&groups, "good", "Accepted").await.0 == "True" })
        .await;
    eventually("the bad one is reported", || async {
        condition(&groups, "bad", "Accepted").await.0 == "False"
    })
    .await;
    let (_, reason, message) = condition(&groups, "bad", "Accepted").await;
    assert_eq!(reason, "InvalidSpec");
    assert!(
        message.starts_with("spec.deletionPolicy cannot be read: ") && message.contains("correct it"),
        "{message}"
    );
    assert_eq!(condition(&groups, "bad", "Ready").await.0, "False");

    let right = Patch::Merge(json!({ "spec": { "deletionPolicy": "RemoveLabels" } }));
    groups.patch("bad", &PatchParams::default(), &right).await.unwrap();
    eventually("it is corrected", || async { condition(&groups, "bad", "Accepted").await.0 == "True" }).await;
    let charged = "select count(*) from leadergroup.lock where key like '%/bad' and session is not null";
    eventually("it is owned", || async { database.number(charged).await == 1 }).await;

    let wrong = Patch::Merge(json!({ "spec": { "deletionPolicy": "Explode" } }));
    groups.patch("bad", &PatchParams::default(), &wrong).await.unwrap();
    eventually("it is left to a replica that can read it", || async { database.number(charged).await == 0 })
        .await;
    assert_eq!(condition(&groups, "good", "Accepted").await.0, "True");
    groups.patch("bad", &PatchParams::default(), &right).await.unwrap();
    eventually("it is owned again", || async { database.number(charged).await == 1 }).await;

    let metrics = operator.get("/metrics");
    for kind in ["status", "finalizer"] {
        let series = format!("leadergroup_api_writes_total{{kind=\"{kind}\",outcome=\"done\"}}");
        assert!(metrics.contains(&series), "{series} in {metrics}");
    }
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn an_undecodable_group_can_be_deleted_without_effect_on_the_others() {
    let server = ApiServer::start(&[]).await;
    let client = server.client().await;
    server.take_validation_off().await;
    let namespace = server.namespace("unreadable").await;
    let (groups, pods) = (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client, &namespace));
    let create = async |name: &str, spec: &Value, finalizers: &[&str]| {
        let mut group = group(name, spec);
        group.metadata.finalizers = Some(finalizers.iter().map(|&it| it.to_owned()).collect());
        groups.create(&PostParams::default(), &group).await.unwrap()
    };
    // The older group. It also selects the other group's pods; its own pods carry its own role label.
    let bad = json!({
        "selector": { "matchLabels": { "app": "good" } },
        "routing": { "roleLabel": "example.com/role" },
        "health": 7,
        "deletionPolicy": "Explode"
    });
    let bad = create("bad", &bad, &[FINALIZER]).await;
    // These become undecodable only later.
    let late = json!({ "selector": { "matchLabels": { "app": "late" } }, "lock": { "key": "of-late" } });
    create("late", &late, &[]).await;
    create("worst", &json!({ "selector": { "matchLabels": { "app": "worst" } } }), &[]).await;
    let good = json!({ "selector": { "matchLabels": { "app": "good" } } });
    create("good", &good, &[]).await;
    for pod in [
        pod("bad-1", "bad", "example.com/role", Some(&bad)),
        pod("late-1", "late", "example.com/unrelated", None),
        pod("good-1", "good", "example.com/role", None),
    ] {
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let role_of = async |name: &str| {
        let pod = pods.get(name).await.unwrap();
        (pod.labels().get(ROLE_LABEL).cloned(), pod.annotations().contains_key(STAMP_ANNOTATION))
    };
    let standby = (Some("standby".to_owned()), true);

    let database = postgres::database().await;
    let mut operator = Operator::start(&server, &namespace, &database.url());
    eventually("the good ones are worked for", || async {
        role_of("good-1").await == standby && role_of("late-1").await == standby
    })
    .await;
    for name in ["good", "late", "worst"] {
        eventually("they say so", || async { condition(&groups, name, "Accepted").await.0 == "True" }).await;
    }
    eventually("the bad one is reported", || async {
        condition(&groups, "bad", "Accepted").await.0 == "False"
    })
    .await;
    for (name, wrong) in
        [("late", json!({ "routing": 7, "health": { "interval": 7 } })), ("worst", json!({ "selector": 7 }))]
    {
        let wrong = Patch::Merge(json!({ "spec": wrong }));
        groups.patch(name, &PatchParams::default(), &wrong).await.unwrap();
        eventually("it is reported", || async { condition(&groups, name, "Accepted").await.0 == "False" })
            .await;
    }
    // Undecodable objects exist when a stricter CRD is installed, as when an upgrade is rolled back.
    server.put_validation_on().await;
    let of_good = WatchParams::default().fields("metadata.name=good").timeout(120).disable_bookmarks();
    let mut watch = groups.watch(&of_good, "0").await.unwrap().boxed();
    let before = pods.get("good-1").await.unwrap().resource_version();
    for name in ["bad", "late", "worst"] {
        groups.delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in ["bad", "late"] {
        eventually("it is gone", || async { groups.get_opt(name).await.unwrap().is_none() }).await;
    }
    let bad = pods.get("bad-1").await.unwrap();
    assert!(!bad.labels().contains_key("example.com/role") && role_of("bad-1").await == (None, false));
    assert_eq!(role_of("late-1").await, (None, false), "according to its last known spec");

    assert_eq!(
        pods.get("good-1").await.unwrap().resource_version(),
        before,
        "the other group's pod is unchanged"
    );
    let paused = Patch::Merge(json!({ "spec": { "paused": true } }));
    groups.patch("good", &PatchParams::default(), &paused).await.unwrap();
    loop {
        let event = tokio::time::timeout(DEADLINE, watch.try_next()).await.unwrap().unwrap();
        let Some(WatchEvent::Added(group) | WatchEvent::Modified(group)) = event else {
            panic!("the watch shows the pause, not {event:?}")
        };
        let conditions = group.data.pointer("/status/conditions").and_then(Value::as_array).unwrap();
        let accepted = conditions.iter().find(|condition| condition["type"] == "Accepted").unwrap();
        assert_eq!(accepted["status"], "True", "{accepted}");
        if group.data.pointer("/spec/paused") == Some(&json!(true)) {
            break;
        }
    }

    // If an immutable field has the wrong type, the object cannot be changed while the validation is active.
    eventually("it is said why", || async { operator.log().contains("spec.selector: Invalid value") }).await;
    assert!(groups.get_opt("worst").await.unwrap().is_some());
    server.take_validation_off().await;
    eventually("it is gone", || async { groups.get_opt("worst").await.unwrap().is_none() }).await;
    let tombstones = "select count(*) from leadergroup.lock where tombstone";
    assert_eq!(database.number(&format!("{tombstones} and key = 'of-late'")).await, 1);
    assert_eq!(database.number(tombstones).await, 3);
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_group_that_was_deleted_unseen_gets_a_tombstone() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (database, store) = postgres::migrated().await;
    let namespace = server.namespace("unseen").await;
    let groups = groups(client.clone(), &namespace);
    let there = groups.create(&PostParams::default(), &group("there", &good_spec())).await.unwrap();
    let cluster = cluster(client).await;
    let former = store.register("former", Duration::from_secs(5), None, None).await.unwrap().0;
    let rows = [
        ("gone", format!("{cluster}/{namespace}/gone/u1")),
        ("replaced", format!("{cluster}/{namespace}/there/u1")),
        ("elsewhere", format!("c2/{namespace}/gone/u1")),
        ("job", "reports".to_owned()),
        ("there", format!("{cluster}/{namespace}/there/{}", there.metadata.uid.unwrap())),
    ];
    let claims = rows.map(|(key, group)| Claim {
        key: Key::new(key).unwrap(),
        group,
        may_create: true,
        supersedes: None,
    });
    for claimed in store.claim(former, &claims).await.unwrap() {
        assert!(matches!(claimed, Claimed::Ours(_)), "{claimed:?}");
    }
    store.close(former).await.unwrap();
    let mut operator = Operator::start_with(
        server,
        &namespace,
        &[
            ("LEADERGROUP_DATABASE_URL", &database.url()),
            ("LEADERGROUP_TTL", "1s"),
            ("LEADERGROUP_RETRY_INTERVAL", "300ms"),
            ("LEADERGROUP_DATABASE_STATEMENT_TIMEOUT", "500ms"),
        ],
    );
    let buried = "select count(*) from leadergroup.lock where tombstone";
    eventually("both are buried", || async { database.number(buried).await == 2 }).await;
    let others = "select count(*) from leadergroup.lock
                  where key in ('elsewhere', 'job', 'there') and not tombstone";
    assert_eq!(database.number(others).await, 3);
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
