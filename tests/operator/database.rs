//! Tests of user errors about the database, and of the shutdown while the operator waits for the database.

use std::{fs, time::Duration};

use kube::api::PostParams;

use crate::{
    apiserver::ApiServer,
    objects::{condition, good_spec, group, groups},
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
