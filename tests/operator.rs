//! One replica of the operator as a process of its own, on a real API server and a real PostgreSQL: what users get wrong,
//! and how it ends.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

mod apiserver;
mod postgres;

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use apiserver::ApiServer;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
    },
};
use leadergroup::{
    api::{FINALIZER, LeaderGroup, ROLE_LABEL, STAMP_ANNOTATION},
    lock::{Changed, Claim, Claimed, Key},
};
use postgres::{DEADLINE, PASSWORD, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A running replica.
struct Operator {
    child: Child,
    address: String,
    directory: TempDir,
}

impl Operator {
    fn start(server: &ApiServer, namespace: &str, database_url: &str) -> Self {
        Self::start_with(server, namespace, &[("LEADERGROUP_DATABASE_URL", database_url)])
    }

    /// It looks after namespaces of its own: other tests have operators of their own on the same API server.
    fn start_with(server: &ApiServer, namespaces: &str, variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        // Free now; nobody else on this machine asks for it in the next moments.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_leadergroup"))
            .env_clear()
            .args(["run", "--replica", "one", "--listen", &address])
            .env("KUBECONFIG", server.kubeconfig())
            .env("LEADERGROUP_NAMESPACES", namespaces)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, address, directory }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Status line, headers and body; nothing as long as nobody answers.
    fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
            let done = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
            done.unwrap_or_default();
        }
        answer
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end, and says how it did and how long that took.
    async fn end(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, start.elapsed());
            }
            assert!(start.elapsed() < DEADLINE, "it does not end: {}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        if std::thread::panicking() {
            eprintln!("what the operator wrote: {}", self.log());
        }
    }
}

fn group(name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "leadergroup.dev/v1alpha1",
        "kind": "LeaderGroup",
        "metadata": { "name": name },
        "spec": spec
    }))
    .unwrap()
}

fn groups(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<LeaderGroup>(&()))
}

/// Status, reason and message of a condition.
async fn condition(groups: &Api<DynamicObject>, name: &str, kind: &str) -> (String, String, String) {
    let group = groups.get(name).await.unwrap();
    let conditions = group.data.pointer("/status/conditions").and_then(Value::as_array).cloned();
    let found = conditions.unwrap_or_default().into_iter().find(|condition| condition["type"] == kind);
    let text = |key: &str| found.as_ref().and_then(|it| it[key].as_str()).unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

fn good_spec() -> Value {
    json!({ "selector": { "matchLabels": { "app": "none" } } })
}

#[tokio::test]
async fn a_url_that_is_none_is_told_everywhere_and_nothing_crashes() {
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
    assert_eq!(told, 1, "once is enough: {}", operator.log());
    assert!(operator.is_running());
    assert!(operator.end().await.0.success());
}

#[tokio::test]
async fn a_wrong_url_in_a_file_is_told_and_heals_without_a_restart() {
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
async fn a_group_that_cannot_be_read_says_so_and_the_others_go_on() {
    let server = ApiServer::start(&[]).await;
    let client = server.client().await;
    server.take_validation_off().await;
    let namespace = server.namespace("unreadable").await;
    let groups = groups(client, &namespace);
    let bad = json!({ "selector": { "matchLabels": { "app": "web" } }, "onDelete": "Explode" });
    groups.create(&PostParams::default(), &group("bad", &bad)).await.unwrap();
    groups.create(&PostParams::default(), &group("good", &good_spec())).await.unwrap();

    let (database, _store) = postgres::migrated().await;
    let mut operator = Operator::start(&server, &namespace, &database.url());
    eventually("the good one is seen", || async { condition(&groups, "good", "Accepted").await.0 == "True" })
        .await;
    eventually("the bad one is told", || async { condition(&groups, "bad", "Accepted").await.0 == "False" })
        .await;
    let (_, reason, message) = condition(&groups, "bad", "Accepted").await;
    assert_eq!(reason, "InvalidSpec");
    assert!(
        message.starts_with("spec.onDelete cannot be read: ") && message.contains("put it right"),
        "{message}"
    );
    assert_eq!(condition(&groups, "bad", "Ready").await.0, "False");

    let right = Patch::Merge(json!({ "spec": { "onDelete": "Strip" } }));
    groups.patch("bad", &PatchParams::default(), &right).await.unwrap();
    eventually("it is put right", || async { condition(&groups, "bad", "Accepted").await.0 == "True" }).await;
    let charged = "select count(*) from leadergroup.lock where key like '%/bad' and session is not null";
    eventually("it is looked after", || async { database.number(charged).await == 1 }).await;

    let wrong = Patch::Merge(json!({ "spec": { "onDelete": "Explode" } }));
    groups.patch("bad", &PatchParams::default(), &wrong).await.unwrap();
    eventually("it is left to a replica that can read it", || async { database.number(charged).await == 0 })
        .await;
    assert_eq!(condition(&groups, "good", "Accepted").await.0, "True");
    groups.patch("bad", &PatchParams::default(), &right).await.unwrap();
    eventually("it is looked after again", || async { database.number(charged).await == 1 }).await;

    let metrics = operator.get("/metrics");
    for kind in ["status", "finalizer"] {
        let series = format!("leadergroup_api_writes_total{{kind=\"{kind}\",outcome=\"done\"}}");
        assert!(metrics.contains(&series), "{series} in {metrics}");
    }
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

/// A pod as it was labelled: the name of the label, and the stamp.
fn pod(name: &str, app: &str, label: &str, stamp: Option<&DynamicObject>) -> Pod {
    let stamp = stamp.map(|group| json!({ STAMP_ANNOTATION: format!("{}/3", group.uid().unwrap()) }));
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "app": app, label: "active" }, "annotations": stamp },
        "spec": { "containers": [{ "name": "main", "image": "none" }] }
    }))
    .unwrap()
}

#[tokio::test]
async fn a_group_that_cannot_be_read_goes_when_it_is_deleted_and_the_others_do_not_notice() {
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
    // The older one. It selects the other's pods, too; its own ones carry a label of its own.
    let bad = json!({
        "selector": { "matchLabels": { "app": "good" } },
        "routing": { "roleLabel": "example.com/role" },
        "health": 7,
        "onDelete": "Explode"
    });
    let bad = create("bad", &bad, &[FINALIZER]).await;
    // These cannot be read only later.
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
    eventually("the bad one is told", || async { condition(&groups, "bad", "Accepted").await.0 == "False" })
        .await;
    for (name, wrong) in
        [("late", json!({ "routing": 7, "lock": { "ttl": 7 } })), ("worst", json!({ "selector": 7 }))]
    {
        let wrong = Patch::Merge(json!({ "spec": wrong }));
        groups.patch(name, &PatchParams::default(), &wrong).await.unwrap();
        eventually("it is told", || async { condition(&groups, name, "Accepted").await.0 == "False" }).await;
    }
    // What cannot be read is there when a stricter definition comes, as in an upgrade that was taken back.
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
    assert_eq!(role_of("late-1").await, (None, false), "by what was known of it");

    assert_eq!(
        pods.get("good-1").await.unwrap().resource_version(),
        before,
        "nobody touched the other's pod"
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

    // What is immutable and of the wrong type lets nobody change anything in the object while the validation is on.
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
async fn a_migration_that_waits_does_not_hold_up_the_end() {
    let server = ApiServer::shared().await;
    let database = postgres::database().await;
    // Somebody else changes the schema, and is not done for as long as this lasts: the number is the migrations' own.
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
async fn a_schema_that_is_lost_is_made_anew_without_a_restart() {
    let server = ApiServer::shared().await;
    let database = postgres::database().await;
    let namespace = server.namespace("lost-schema").await;
    let groups = groups(server.client().await, &namespace);
    groups.create(&PostParams::default(), &group("web", &good_spec())).await.unwrap();
    let mut operator = Operator::start(server, &namespace, &database.url());
    let reachable = || async { condition(&groups, "web", "LockStoreReachable").await.0 == "True" };
    eventually("the database can be used", reachable).await;
    // As when a database without a volume is restarted, or another one takes its place.
    database.sql("drop schema leadergroup cascade").await;
    let tables = "select count(*) from pg_tables where schemaname = 'leadergroup' and tablename = 'lock'";
    eventually("the tables are there again", || async { database.number(tables).await == 1 }).await;
    let charged = "select count(*) from leadergroup.lock where session is not null";
    eventually("the group is looked after again", || async { database.number(charged).await == 1 }).await;
    eventually("the group says so", reachable).await;
    eventually("the operator is ready", || async { operator.get("/readyz").starts_with("HTTP/1.1 200") })
        .await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_group_that_went_away_unseen_is_buried_and_no_other_is() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (database, store) = postgres::migrated().await;
    let namespace = server.namespace("unseen").await;
    let groups = groups(client.clone(), &namespace);
    let there = groups.create(&PostParams::default(), &group("there", &good_spec())).await.unwrap();
    let system = Api::<Namespace>::all(client).get("kube-system").await.unwrap();
    let cluster = system.metadata.uid.unwrap();
    let former = store.register("former", Duration::from_secs(5)).await.unwrap();
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

/// An account with the rights that the chart gives with `watchNamespaces`: those that have no namespace from the start.
struct Account {
    client: Client,
    name: String,
    directory: TempDir,
}

impl Account {
    async fn new(server: &ApiServer, name: &str) -> Self {
        let account = Self {
            client: server.client().await,
            name: name.to_owned(),
            directory: tempfile::tempdir().unwrap(),
        };
        let kubeconfig = fs::read_to_string(server.kubeconfig()).unwrap();
        let acting = kubeconfig.replacen("user: {token:", &format!("user: {{as: {name}, token:"), 1);
        assert_ne!(acting, kubeconfig, "the account is somebody else");
        fs::write(account.kubeconfig(), acting).unwrap();
        let roles = Api::<ClusterRole>::all(account.client.clone());
        let everywhere = json!([
            { "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"] },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list", "watch"] },
            { "apiGroups": ["leadergroup.dev"], "resources": ["leadergroups"],
              "verbs": ["get", "list", "watch", "patch"] }
        ]);
        let watched = json!([
            { "apiGroups": ["leadergroup.dev"], "resources": ["leadergroups/status"], "verbs": ["patch"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"] },
            { "apiGroups": ["apps"], "resources": ["replicasets", "statefulsets"], "verbs": ["get"] },
            { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] }
        ]);
        for (suffix, rules) in [("cluster", everywhere), ("watched", watched)] {
            let role = json!({ "metadata": { "name": format!("{name}-{suffix}") }, "rules": rules });
            let role = serde_json::from_value(role).unwrap();
            roles.create(&PostParams::default(), &role).await.unwrap();
        }
        let binding: ClusterRoleBinding = serde_json::from_value(account.binding("cluster")).unwrap();
        let bindings = Api::<ClusterRoleBinding>::all(account.client.clone());
        bindings.create(&PostParams::default(), &binding).await.unwrap();
        account
    }

    fn kubeconfig(&self) -> String {
        self.directory.path().join("kubeconfig").display().to_string()
    }

    fn binding(&self, role: &str) -> Value {
        let (name, group) = (format!("{}-{role}", self.name), "rbac.authorization.k8s.io");
        json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": self.name }]
        })
    }

    fn bindings(&self, namespace: &str) -> Api<RoleBinding> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Gives it the rights that it has in a watched namespace.
    async fn let_into(&self, namespace: &str) {
        let binding = serde_json::from_value(self.binding("watched")).unwrap();
        self.bindings(namespace).create(&PostParams::default(), &binding).await.unwrap();
    }

    /// Takes them away, as the deletion of the namespace does.
    async fn shut_out_of(&self, namespace: &str) {
        let name = format!("{}-watched", self.name);
        self.bindings(namespace).delete(&name, &DeleteParams::default()).await.unwrap();
    }

    fn start(&self, server: &ApiServer, namespaces: &[&str], database_url: &str) -> Operator {
        let variables =
            [("KUBECONFIG", self.kubeconfig()), ("LEADERGROUP_DATABASE_URL", database_url.to_owned())];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        Operator::start_with(server, &namespaces.join(","), &variables)
    }
}

#[tokio::test]
async fn a_namespace_without_rights_takes_nothing_from_the_others() {
    let server = ApiServer::shared().await;
    let (database, _store) = postgres::migrated().await;
    let (good, gone) = (server.namespace("good").await, server.namespace("gone").await);
    let account = Account::new(server, &good).await;
    account.let_into(&good).await;
    let in_good = groups(server.client().await, &good);
    let in_gone = groups(server.client().await, &gone);
    in_good.create(&PostParams::default(), &group("web", &good_spec())).await.unwrap();
    in_gone.create(&PostParams::default(), &group("lost", &good_spec())).await.unwrap();
    let mut operator = account.start(server, &[&gone, &good], &database.url());
    let charged = |name: &str| {
        format!("select count(*) from leadergroup.lock where key like '%/{name}' and session is not null")
    };
    eventually("the group of the other one is looked after", || async {
        operator.get("/readyz").starts_with("HTTP/1.1 200") && database.number(&charged("web")).await == 1
    })
    .await;
    eventually("and says so", || async { condition(&in_good, "web", "Accepted").await.0 == "True" }).await;
    let (_, reason, message) = condition(&in_good, "web", "Active").await;
    assert_eq!(reason, "NoPods", "{message}");
    eventually("the failure is logged", || async {
        operator.log().lines().any(|line| line.contains("HTTP 403") && line.contains(&gone))
    })
    .await;
    assert_eq!(database.number(&charged("lost")).await, 0, "without its pods nobody takes charge of it");

    account.let_into(&gone).await;
    eventually("the right is noticed", || async { database.number(&charged("lost")).await == 1 }).await;
    // A right that is taken away while it runs.
    account.shut_out_of(&gone).await;
    let failures = || operator.log().lines().filter(|line| line.contains("a watch failed")).count();
    let before = failures();
    eventually("it is noticed that it is gone", || async { failures() > before }).await;
    assert!(operator.get("/readyz").starts_with("HTTP/1.1 200"), "{}", operator.get("/readyz"));
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_group_whose_namespace_takes_the_rights_away_first_goes_all_the_same() {
    let server = ApiServer::shared().await;
    let (database, _store) = postgres::migrated().await;
    let namespace = server.namespace("leaving").await;
    let client = server.client().await;
    let (groups, pods) = (groups(client.clone(), &namespace), Api::<Pod>::namespaced(client, &namespace));
    let account = Account::new(server, &namespace).await;
    account.let_into(&namespace).await;
    for name in ["first", "second"] {
        let spec = json!({ "selector": { "matchLabels": { "app": name } } });
        groups.create(&PostParams::default(), &group(name, &spec)).await.unwrap();
        let pod = pod(&format!("{name}-1"), name, "example.com/unrelated", None);
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let mut operator = account.start(server, &[&namespace], &database.url());
    for name in ["first-1", "second-1"] {
        eventually("its pod is labelled", || async {
            pods.get(name).await.unwrap().labels().contains_key(ROLE_LABEL)
        })
        .await;
    }

    // While the operator runs: what its watch does not show any more, or can do nothing about.
    account.shut_out_of(&namespace).await;
    groups.delete("first", &DeleteParams::default()).await.unwrap();
    eventually("it is gone", || async { groups.get_opt("first").await.unwrap().is_none() }).await;
    let tombstones = "select count(*) from leadergroup.lock where tombstone";
    assert_eq!(database.number(tombstones).await, 1);

    // After a restart, when the pods cannot be listed any more.
    assert!(operator.end().await.0.success(), "{}", operator.log());
    groups.delete("second", &DeleteParams::default()).await.unwrap();
    let mut operator = account.start(server, &[&namespace], &database.url());
    eventually("it is gone, too", || async { groups.get_opt("second").await.unwrap().is_none() }).await;
    assert_eq!(database.number(tombstones).await, 2);
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

/// Another replica that lives on, and can no longer read the group, say.
#[tokio::test]
async fn a_group_that_another_replica_passes_on_is_taken_while_that_one_lives() {
    let server = ApiServer::shared().await;
    let client = server.client().await;
    let (database, store) = postgres::migrated().await;
    let namespace = server.namespace("passed").await;
    let there = groups(client.clone(), &namespace);
    let there = there.create(&PostParams::default(), &group("there", &good_spec())).await.unwrap();
    let system = Api::<Namespace>::all(client).get("kube-system").await.unwrap();
    let cluster = system.metadata.uid.unwrap();
    // It does not beat, and does not expire for as long as this may take either.
    let other = store.register(&format!("{cluster}/other"), Duration::from_mins(10)).await.unwrap();
    let key = Key::new(format!("{cluster}/{namespace}/there")).unwrap();
    let claim = Claim {
        key: key.clone(),
        group: format!("{cluster}/{namespace}/there/{}", there.metadata.uid.unwrap()),
        may_create: true,
        supersedes: None,
    };
    assert!(matches!(store.claim(other, &[claim]).await.unwrap()[..], [Claimed::Ours(_)]));
    let mut operator = Operator::start(server, &namespace, &database.url());
    let ready = || async { operator.get("/readyz").starts_with("HTTP/1.1 200") };
    eventually("it works", ready).await;
    let asked = "select count(*) from leadergroup.session where beat > 4 and not dead";
    eventually("it has asked who is in charge", || async { database.number(asked).await == 1 }).await;
    let charged = "select count(*) from leadergroup.lock where session is not null";
    assert_eq!(store.yield_charge(other, &[key]).await.unwrap(), [Changed::Done]);
    eventually("it has taken the group", || async { database.number(charged).await == 1 }).await;
    let lives = "select count(*) from leadergroup.session where not dead";
    assert_eq!(database.number(lives).await, 2, "the other one lives on");
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
