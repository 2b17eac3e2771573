//! Tests of user errors about the database, and of the shutdown while the operator waits for the database.

use std::{fs, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::{
    apiserver::ApiServer,
    objects::{condition, good_spec, group, groups, pod},
    postgres::{self, PASSWORD, eventually},
    replica::Operator,
};

#[tokio::test]
async fn an_invalid_url_is_reported_everywhere_and_nothing_crashes() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("bad-url").await;
    let groups = groups(server.client().await, &namespace);
    groups.create(&PostParams::default(), &group("web", &good_spec())).await.unwrap();
    let mut operator = Operator::start(server, &namespace, &format!("postgres:/app:{PASSWORD}@db/locks"));
    eventually("the group says that the database cannot be used", || async {
        condition(&groups, "web", "LockStoreReachable").await.0 == "False"
    })
    .await;
    let (_, reason, message) = condition(&groups, "web", "LockStoreReachable").await;
    assert_eq!(reason, "LockStoreUnavailable");
    for text in [&message, &operator.get("/readyz"), &operator.log()] {
        assert!(
            text.contains("must be a PostgreSQL URL: write one like postgres://user@host:5432/name"),
            "{text}"
        );
        assert!(text.contains("LEADERGROUP_DATABASE_URL") && text.contains("restart"), "{text}");
        assert!(!text.contains(PASSWORD), "{text}");
    }
    assert!(operator.get("/readyz").starts_with("HTTP/1.1 503"));
    assert!(operator.get("/livez").starts_with("HTTP/1.1 200"));
    let told = operator.log().lines().filter(|line| line.contains("must be a PostgreSQL URL")).count();
    assert_eq!(told, 1, "it must be logged once: {}", operator.log());
    assert!(operator.is_running());
    assert!(operator.end().await.0.success());
}

#[tokio::test]
async fn a_wrong_url_in_a_file_is_reported_and_can_be_corrected_without_a_restart() {
    let server = ApiServer::shared().await;
    let database = postgres::database().await;
    let namespace = server.namespace("bad-url-file").await;
    let groups = groups(server.client().await, &namespace);
    groups.create(&PostParams::default(), &group("web", &good_spec())).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    fs::write(&file, database.url().replacen("//", "/", 1)).unwrap();
    let variable = "LEADERGROUP_DATABASE_URL_FILE";
    let mut operator = Operator::start_with(server, &namespace, &[(variable, &file.display().to_string())]);
    eventually("the group says that the database cannot be used", || async {
        condition(&groups, "web", "LockStoreReachable").await.0 == "False"
    })
    .await;
    let (_, _, message) = condition(&groups, "web", "LockStoreReachable").await;
    for text in [&message, &operator.get("/readyz"), &operator.log()] {
        assert!(text.contains(&format!("cannot use {}: it does not start with", file.display())), "{text}");
        assert!(text.contains("write postgres://") && !text.contains(PASSWORD), "{text}");
    }

    fs::write(&file, database.url()).unwrap();
    eventually("the group says that the database can be used", || async {
        condition(&groups, "web", "LockStoreReachable").await.0 == "True"
    })
    .await;
    eventually("the operator is ready", || async { operator.get("/readyz").starts_with("HTTP/1.1 200") })
        .await;
    assert!(operator.is_running());
    assert!(!operator.log().contains(PASSWORD));
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_migration_that_waits_does_not_hold_up_the_end() {
    let server = ApiServer::shared().await;
    let database = postgres::database().await;
    // Another session holds the advisory lock of the migrations during the whole test.
    let mut other = database.admin().await;
    sqlx::query("select pg_advisory_lock(7810769283150411335)").execute(&mut other).await.unwrap();
    let namespace = server.namespace("migration").await;
    let mut operator = Operator::start(server, &namespace, &database.url());
    let waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted and database =
                 (select oid from pg_database where datname = current_database())";
    eventually("the migration waits", || async { database.number(waits).await == 1 }).await;
    let (status, took) = operator.end().await;
    assert!(status.success(), "{}", operator.log());
    assert!(took < Duration::from_secs(20), "it took {took:?}: {}", operator.log());
}

#[tokio::test]
async fn the_metrics_say_that_the_database_is_away_as_long_as_it_is() {
    let server = ApiServer::shared().await;
    let own = postgres::Server::start(&[]);
    let database = own.database().await;
    let namespace = server.namespace("outage").await;
    let groups = groups(server.client().await, &namespace);
    groups.create(&PostParams::default(), &group("web", &good_spec())).await.unwrap();
    let mut operator = Operator::start(server, &namespace, &database.url());
    let shows = |line: &str| operator.get("/metrics").lines().any(|shown| shown == line);
    let of_group = || operator.get("/metrics").contains("leadergroup_active{");
    eventually("the database is up", || async { shows("leadergroup_lock_store_up 1") && of_group() }).await;
    for how in [postgres::Server::stop, postgres::Server::kill] {
        how(&own);
        eventually("the database is away", || async { shows("leadergroup_lock_store_up 0") }).await;
        // No series of a group is left on which an alert could be based.
        eventually("the group is nobody's", || async { !of_group() }).await;
        assert!(shows("leadergroup_lock_store_up 0"));
        own.launch();
        eventually("the database is up", || async { shows("leadergroup_lock_store_up 1") && of_group() })
            .await;
    }
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_cause_that_all_groups_have_is_logged_once() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("away").await;
    let groups = groups(server.client().await, &namespace);
    let pods = Api::<Pod>::namespaced(server.client().await, &namespace);
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        let spec = json!({ "selector": { "matchLabels": { "app": name } } });
        groups.create(&PostParams::default(), &group(name, &spec)).await.unwrap();
        let pod = pod(&format!("{name}-0"), name, "example.com/unrelated", None);
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    // Nothing listens there.
    let mut operator =
        Operator::start(server, &namespace, "postgres://app@127.0.0.1:1/locks?sslmode=disable");
    for name in names {
        eventually("each group says so", || async {
            condition(&groups, name, "Ready").await.1 == "LockStoreUnavailable"
        })
        .await;
    }
    let told = operator.log().lines().filter(|line| line.contains("the group is not ready")).count();
    assert_eq!(told, 1, "{}", operator.log());
    assert!(operator.end().await.0.success());
}

#[tokio::test]
async fn a_lost_schema_is_created_again_without_a_restart() {
    let server = ApiServer::shared().await;
    let database = postgres::database().await;
    let namespace = server.namespace("lost-schema").await;
    let groups = groups(server.client().await, &namespace);
    groups.create(&PostParams::default(), &group("web", &good_spec())).await.unwrap();
    let mut operator = Operator::start(server, &namespace, &database.url());
    let reachable = || async { condition(&groups, "web", "LockStoreReachable").await.0 == "True" };
    eventually("the database can be used", reachable).await;
    // As when a database without a volume is restarted, or is replaced by another one.
    database.sql("drop schema leadergroup cascade").await;
    let tables = "select count(*) from pg_tables where schemaname = 'leadergroup' and tablename = 'lock'";
    eventually("the tables are there again", || async { database.number(tables).await == 1 }).await;
    let charged = "select count(*) from leadergroup.lock where session is not null";
    eventually("the group is owned again", || async { database.number(charged).await == 1 }).await;
    eventually("the group reports this", reachable).await;
    eventually("the operator is ready", || async { operator.get("/readyz").starts_with("HTTP/1.1 200") })
        .await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
