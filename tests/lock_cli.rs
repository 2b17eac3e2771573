//! Tests of `leadergroup lock` with a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../lock/tests/postgres/mod.rs"]
mod postgres;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use leadergroup_lock::{
    Changed, GrantId, Holder, Key, Refusal, SessionId, Store, Token,
    controller::{Claim, Claimed, Grant, Granted},
    protocol::{AcquireRequest, Acquired, Wait},
};
use postgres::Database;
use serde_json::{Value, json};

fn run(database: &Database, arguments: &[&str]) -> Output {
    // The program would refuse the tests' own variables as misspelt settings.
    let mut command = Command::new(env!("CARGO_BIN_EXE_leadergroup"));
    command.env_clear().arg("lock").args(arguments).args(["--replica", "test"]);
    command.env("LEADERGROUP_DATABASE_URL", database.url()).output().unwrap()
}

fn text(database: &Database, arguments: &[&str]) -> String {
    let output = run(database, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(database: &Database, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(database, &[arguments, &["-o", "json"]].concat())).unwrap()
}

fn error(database: &Database, arguments: &[&str]) -> String {
    let output = run(database, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
    assert!(errors.starts_with("leadergroup: ") && errors.lines().count() == 1, "{errors}");
    errors
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn take(store: &Store, own: SessionId, name: &str) {
    let claim = Claim { key: key(name), group: "g1".into(), may_create: true, supersedes: None };
    assert!(matches!(store.claim(own, &[claim]).await.unwrap()[0], Claimed::Ours(_)));
}

async fn grant(store: &Store, own: SessionId, name: &str, expected: i64, to: &str) -> Granted {
    let holder = Holder { uid: format!("uid-{to}"), namespace: "jobs".into(), name: to.into() };
    let grant = Grant {
        key: key(name),
        group: "g1".into(),
        expected: Token::new(expected),
        floor: Token::ZERO,
        holder,
        grant: GrantId::new(),
        reason: "the old one is silent".into(),
    };
    store.grant(own, grant).await.unwrap()
}

/// Three locks: one held in its second term, one free, one with another prefix.
async fn locks() -> (Database, Store, SessionId) {
    let (database, store) = postgres::migrated().await;
    let own = store.register("replica-1", Duration::from_secs(5), None, None).await.unwrap().0;
    for name in ["web/a", "web/b", "other"] {
        take(&store, own, name).await;
    }
    for (expected, to) in [(0, "p0"), (1, "p1")] {
        grant(&store, own, "web/a", expected, to).await;
    }
    store.confirm(own, &key("web/a"), Token::new(2)).await.unwrap();
    (database, store, own)
}

#[tokio::test]
async fn locks_are_listed_and_shown() {
    let (database, _store, own) = locks().await;
    let listed = text(&database, &["ls"]);
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KEY", "HOLDER", "TOKEN", "SINCE", "SESSION"]);
    assert_eq!(lines.len(), 4, "{listed}");
    let held = lines.iter().find(|line| line[0] == "web/a").unwrap();
    assert_eq!((held[1], held[2], held[4]), ("jobs/p1", "2", "replica-1"));

    let keys = |arguments: &[&str]| -> Vec<String> {
        let all = json_of(&database, arguments);
        all.as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&["ls"]), ["other", "web/a", "web/b"]);
    assert_eq!(keys(&["ls", "--prefix", "web/"]), ["web/a", "web/b"]);
    assert_eq!(keys(&["ls", "--prefix", "web/", "--limit", "1"]), ["web/a"]);
    assert_eq!(keys(&["ls", "--prefix", "no"]), [""; 0]);

    let shown = json_of(&database, &["show", "web/a"]);
    assert_eq!(shown["holder"], json!({ "uid": "uid-p1", "namespace": "jobs", "name": "p1" }));
    assert_eq!((&shown["token"], &shown["confirmed"]), (&json!(2), &json!(true)));
    assert_eq!(shown["session"]["id"], json!(own));
    assert_eq!(shown["session"]["ended"], json!(false));
    let shown = text(&database, &["show", "web/b"]);
    assert!(shown.contains("(none)") && shown.contains("replica-1"), "{shown}");
    assert!(error(&database, &["show", "web"]).contains("no lock with the key \"web\""));
    assert!(error(&database, &["show", ""]).contains("is empty"));
}

#[tokio::test]
async fn the_history_is_shown() {
    let (database, _store, own) = locks().await;
    let history = json_of(&database, &["history", "web/a"]);
    let tokens: Vec<_> = history.as_array().unwrap().iter().map(|term| &term["token"]).collect();
    assert_eq!(tokens, [&json!(2), &json!(1)]);
    assert_eq!(history[0]["holder"]["name"], json!("p1"));
    assert_eq!(history[0]["reason"], json!("the old one is silent"));
    assert_eq!(history[0]["session"], json!(own));
    assert_eq!(json_of(&database, &["history", "web/a", "--limit", "1"]).as_array().unwrap().len(), 1);
    assert_eq!(json_of(&database, &["history", "web/b"]), json!([]));
    let lines = text(&database, &["history", "web/a"]);
    assert!(lines.contains("jobs/p0") && lines.contains("the old one is silent"), "{lines}");
    assert!(error(&database, &["history", "nothing"]).contains("no lock"));
}

#[tokio::test]
async fn a_lock_is_taken_away_by_force_only_and_the_history_says_so() {
    let (database, store, own) = locks().await;
    let refused = run(&database, &["release", "web/a"]);
    assert_eq!(refused.status.code(), Some(2), "without --force");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    let outdated = error(&database, &["release", "web/a", "--force", "--token", "1"]);
    assert!(outdated.contains("its token is 2, not 1"), "{outdated}");

    let done = text(&database, &["release", "web/a", "--force", "--reason", "stuck since noon"]);
    assert_eq!(done, "web/a was taken away from jobs/p1 (token 2)\n");
    let row = store.info(&key("web/a")).await.unwrap().unwrap();
    assert_eq!((row.holder, row.token, row.session), (None, Token::new(2), None));
    let history = json_of(&database, &["history", "web/a"]);
    assert_eq!(history[0]["released"]["reason"], json!("stuck since noon (by unknown)"));
    assert_eq!(text(&database, &["release", "web/a", "--force"]), "web/a had no holder (token 2)\n");

    // The previous owner cannot simply continue: it must claim the key and read the row again.
    let stale = grant(&store, own, "web/a", 2, "p2").await;
    assert_eq!(stale, Granted::Refused(Refusal::Unclaimed { session: None }));
    take(&store, own, "web/a").await;
    assert_eq!(grant(&store, own, "web/a", 2, "p2").await, Granted::Granted { token: Token::new(3) });
    assert!(error(&database, &["release", "nothing", "--force"]).contains("no lock"));

    let p2 = json!({ "uid": "uid-p2", "namespace": "jobs", "name": "p2" });
    for holder in [p2, Value::Null] {
        let done = json_of(&database, &["release", "web/a", "--force"]);
        assert_eq!(done, json!({ "key": "web/a", "token": 3, "takenFrom": holder, "next": null }));
    }
    for refused in ["nothing", "web/a"] {
        let output = run(&database, &["release", refused, "--force", "--token", "9", "-o", "json"]);
        assert_eq!(
            (output.status.code(), output.stdout),
            (Some(1), vec![]),
            "errors are not printed as JSON"
        );
    }
}

#[tokio::test]
async fn a_lock_taken_from_a_program_goes_to_the_next_waiter() {
    let (database, store) = postgres::migrated().await;
    let own = store.register("two", Duration::from_secs(5), None, None).await.unwrap().0;
    let holder =
        |name: &str| Holder { uid: format!("uid-{name}"), namespace: "jobs".into(), name: name.into() };
    let [first, next] = ["j1", "j2"].map(|name| AcquireRequest::new(key("job"), holder(name), "nightly"));
    assert_eq!(
        store.acquire(own, &first, Wait::InQueue).await.unwrap().outcome,
        Acquired::Granted { token: Token::new(1) }
    );
    assert_eq!(store.acquire(own, &next, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    let shown = json_of(&database, &["show", "job"]);
    assert_eq!((&shown["waiting"][0]["holder"]["name"], &shown["waiting"][1]), (&json!("j2"), &Value::Null));
    assert!(text(&database, &["show", "job"]).contains("waiting:      jobs/j2 since "));
    let done = text(&database, &["release", "job", "--force", "--reason", "stuck", "--by", "ann"]);
    assert_eq!(done, "job was taken away from jobs/j1 (token 1); jobs/j2 holds it now\n");
    assert_eq!(
        store.acquire(own, &next, Wait::InQueue).await.unwrap().outcome,
        Acquired::Granted { token: Token::new(2) }
    );
    let history = json_of(&database, &["history", "job"]);
    assert_eq!(history[1]["released"]["reason"], json!("stuck (by ann)"));

    let last = AcquireRequest::new(key("job"), holder("j3"), "nightly");
    assert_eq!(store.acquire(own, &last, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    let done = json_of(&database, &["release", "job", "--force"]);
    assert_eq!((&done["token"], &done["takenFrom"]["name"]), (&json!(2), &json!("j2")));
    assert_eq!((&done["next"]["token"], &done["next"]["holder"]["name"]), (&json!(3), &json!("j3")));
}

#[tokio::test]
async fn a_check_says_whether_programs_can_use_the_lock() {
    let (database, _store, _own) = locks().await;
    let found = json_of(&database, &["check"]);
    assert_eq!((&found["usable"], &found["problem"]), (&json!(true), &Value::Null));
    let counts = ["livingSessions", "locks", "held", "waiting"].map(|name| found[name].as_u64().unwrap());
    assert_eq!(counts, [1, 3, 1, 0]);
    assert_eq!(found["publications"], json!([]));
    assert!(found["roundTripMs"].as_f64().unwrap() > 0.0 && found["schema"] == found["schemaOfThisProgram"]);
    let lines = text(&database, &["check"]);
    assert!(lines.contains("usable:             yes") && lines.contains("3, 1 of them held"), "{lines}");

    database.sql("create publication everything for all tables").await;
    assert_eq!(json_of(&database, &["check"])["publications"], json!(["everything"]));
    let lines = text(&database, &["check"]);
    assert!(lines.contains("everything (do not replicate the schema leadergroup logically)"), "{lines}");

    database.sql("revoke insert on leadergroup.session from app").await;
    let failed = run(&database, &["check", "-o", "json"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let found: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!(found["missingPrivileges"], json!(["INSERT on session"]));
    assert!(found["problem"].as_str().unwrap().contains("lacks privileges"), "{found}");

    let empty = postgres::database().await;
    let failed = run(&empty, &["check"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(String::from_utf8(failed.stdout).unwrap().contains("run `leadergroup migrate`"));

    let mut unreachable = Command::new(env!("CARGO_BIN_EXE_leadergroup"));
    unreachable.env_clear().args(["lock", "check", "--replica", "test", "-o", "json"]);
    let output =
        unreachable.env("LEADERGROUP_DATABASE_URL", "postgres://a:b@127.0.0.1:1/c").output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &found["usable"]), (Some(1), &json!(false)), "{found}");
    assert!(found["problem"].as_str().unwrap().contains("cannot reach PostgreSQL"), "{found}");
}

#[tokio::test]
async fn a_lock_that_is_being_changed_is_not_waited_for() {
    let (database, store, _own) = locks().await;
    let mut admin = database.admin().await;
    let mut change = sqlx::Connection::begin(&mut admin).await.unwrap();
    sqlx::Executor::execute(&mut *change, "select from leadergroup.lock where key = 'web/a' for update")
        .await
        .unwrap();
    let busy = store.force_release(&key("web/a"), Token::new(2), "test").await.unwrap();
    assert_eq!(busy, Changed::Refused(Refusal::Busy));
    assert!(error(&database, &["release", "web/a", "--force"]).contains("try again"));
}

#[tokio::test]
async fn the_fence_for_other_databases_is_printed() {
    let database = postgres::database().await;
    let output = Command::new(env!("CARGO_BIN_EXE_leadergroup"))
        .env_clear()
        .args(["lock", "fence-sql"])
        .output()
        .unwrap();
    assert!(output.status.success(), "it needs no settings");
    database.sql(&String::from_utf8(output.stdout).unwrap()).await;
    database.sql("select leadergroup.fence_seen('a', 1)").await;
}

/// As `head` does.
#[tokio::test]
async fn a_reader_that_stops_reading_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_leadergroup"))
        .args(["lock", "fence-sql"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Runs a file as `psql` does.
fn psql(database: &Database, file: &str) -> Output {
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--quiet", "--file=-", &database.url()]);
    let mut child =
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(file.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test]
async fn the_schema_as_one_file_is_the_one_that_migrate_makes() {
    let output = Command::new(env!("CARGO_BIN_EXE_leadergroup"))
        .env_clear()
        .args(["lock", "install-sql"])
        .output()
        .unwrap();
    let file = String::from_utf8(output.stdout).unwrap();
    let (database, migrated) = (postgres::database().await, postgres::migrated().await.0);
    // It may be run again.
    for _ in 0..2 {
        let done = psql(&database, &file);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    // All definitions, whatever their order.
    let definitions = "select coalesce(sum(hashtextextended(d, 0) % 1000000007), 0)::bigint from (
            select pg_get_functiondef(oid) from pg_proc where pronamespace = 'leadergroup'::regnamespace
            union all
            select attrelid::regclass || attname || atttypid || attnotnull from pg_attribute join pg_class as c
            on c.oid = attrelid where relnamespace = 'leadergroup'::regnamespace and attnum > 0
            union all
            select indexdef from pg_indexes where schemaname = 'leadergroup'
            union all
            select pg_get_triggerdef(t.oid) from pg_trigger as t join pg_class as c on c.oid = tgrelid
            where relnamespace = 'leadergroup'::regnamespace
            union all
            select version || '/' || works_with from leadergroup.schema_version
        ) as all_definitions (d)";
    assert_eq!(database.number(definitions).await, migrated.number(definitions).await);
    let store = database.store();
    assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
    store.migrate().await.unwrap();
    assert_eq!(database.number(definitions).await, migrated.number(definitions).await);
}

#[tokio::test]
async fn the_file_adds_the_steps_that_are_missing_and_changes_nothing_if_one_fails() {
    let file = leadergroup_lock::admin::install_sql();
    let database = postgres::database().await;
    let version = "select max(version)::bigint from leadergroup.schema_version";
    // The first half of the steps, as an older program brings them along.
    let (older, newer) = file.split_at(file.find("< 4 as missing").unwrap());
    let older = older.rfind('\n').map(|end| &older[..end]).unwrap();
    assert!(psql(&database, &format!("{older}\ncommit;")).status.success());
    assert_eq!(database.number(version).await, 3);
    let fails = format!("{}\nselect 1 / 0;\ncommit;\n", file.strip_suffix("commit;\n").unwrap());
    assert!(!psql(&database, &fails).status.success());
    assert_eq!(database.number(version).await, 3);
    assert!(psql(&database, &file).status.success());
    assert_eq!(database.store().check().await.unwrap().verdict(), Ok(()));
    assert!(newer.contains("leadergroup.prune("));
}

#[test]
fn conform_names_the_rule_that_a_client_breaks() {
    let root = env!("CARGO_MANIFEST_DIR");
    let run = |client: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leadergroup"));
        command.args([
            "lock",
            "conform",
            "--only",
            "a session that is marked dead",
            "--",
            "/usr/bin/python3",
        ]);
        let output = command.args(client).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, report) = run(&[&format!("{root}/lock/examples/python/lock.py")]);
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains("1 scenarios; 0 rules broken"), "{report}");
    let (status, report) = run(&[&format!("{root}/lock/conformance/tests/broken.py"), "R9"]);
    assert_eq!(status, Some(1), "{report}");
    assert!(report.starts_with("BROKEN R9  After its session has died"), "{report}");
    let output = Command::new(env!("CARGO_BIN_EXE_leadergroup"))
        .args(["lock", "conform", "--", "/nowhere/client"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "it says nothing about a client that cannot be started");
}
