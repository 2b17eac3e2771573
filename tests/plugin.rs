//! Tests of `kubectl leadergroup` with a real API server: each command of the built program, as a user runs it. Nothing
//! else runs, so the tests write what an operator and a kubelet would report.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

mod apiserver;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Output, Stdio},
};

use apiserver::ApiServer;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
    events::v1::Event,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use leadergroup::api::{LeaderGroup, SWITCHOVER_ANNOTATION, SWITCHOVER_TO_ANNOTATION};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A namespace with a group of two pods, of which web-0 is active.
struct World {
    server: &'static ApiServer,
    client: Client,
    namespace: String,
    /// The user's kubeconfig.
    files: TempDir,
}

impl World {
    async fn new(name: &str) -> Self {
        let server = ApiServer::shared().await;
        let (client, namespace) = (server.client().await, server.namespace(name).await);
        let world = Self { server, client, namespace, files: tempfile::tempdir().unwrap() };
        world.act_as(None);
        world
    }

    /// From now on the commands are those of another user; None is the administrator.
    fn act_as(&self, user: Option<&str>) {
        let text = fs::read_to_string(self.server.kubeconfig()).unwrap();
        let user = user.map_or_else(String::new, |user| format!(", as: {user}"));
        let text = text.replace("}\ncontexts:", &format!("{user}}}\ncontexts:"));
        let text = text.replace("user: admin}", &format!("user: admin, namespace: {}}}", self.namespace));
        fs::write(self.files.path().join("kubeconfig"), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-leadergroup"));
        command.env_clear().env("KUBECONFIG", self.files.path().join("kubeconfig")).args(args);
        command
    }

    /// Runs a command. Returns its exit status, what it prints, and what it complains about.
    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = self.command(args);
        let output: Output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// The output of a command that succeeds.
    async fn text(&self, args: &[&str]) -> String {
        let (status, text, errors) = self.run(args).await;
        assert_eq!(status, 0, "{args:?}: {text}{errors}");
        text
    }

    /// The same as JSON.
    async fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[args, &["-o", "json"]].concat()).await).unwrap()
    }

    /// The complaint of a command that fails.
    async fn complaint(&self, args: &[&str]) -> String {
        let (status, text, errors) = self.run(args).await;
        assert_eq!(status, 1, "{args:?}: {text}{errors}");
        assert!(text.is_empty() && errors.starts_with("kubectl leadergroup: "), "{text}{errors}");
        errors
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    /// What an operator writes into the status of a group.
    async fn report(&self, group: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api::<LeaderGroup>().patch_status(group, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A group that no operator has seen.
    async fn group(&self, name: &str) {
        let group = json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup", "metadata": { "name": name },
            "spec": { "selector": { "matchLabels": { "app": name } } },
        });
        self.create::<LeaderGroup>(group).await;
    }

    /// A Ready pod with this role, on a node that does not exist.
    async fn pod(&self, group: &str, name: &str, role: &str) {
        self.create::<Pod>(json!({
            "metadata": { "name": name, "labels": { "app": group, "leadergroup.dev/role": role } },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "main", "image": "none" }] },
        }))
        .await;
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let pods = self.api::<Pod>();
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    }

    /// A Service with one endpoint.
    async fn service(&self, name: &str, selector: Value, endpoint: &str) {
        self.create::<Service>(json!({
            "metadata": { "name": name }, "spec": { "selector": selector, "ports": [{ "port": 80 }] },
        }))
        .await;
        self.create::<EndpointSlice>(json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4", "ports": [],
            "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": { "ready": true },
                "targetRef": { "kind": "Pod", "name": endpoint, "namespace": self.namespace },
            }],
        }))
        .await;
    }

    /// The group `web` with two pods and a Service. All is well.
    async fn web(&self) {
        self.group("web").await;
        self.pod("web", "web-0", "active").await;
        self.pod("web", "web-1", "standby").await;
        self.service("web", json!({ "app": "web", "leadergroup.dev/role": "active" }), "web-0").await;
        self.report("web", well()).await;
    }
}

/// The status of a group that works.
fn well() -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "observedGeneration": 1,
        "active": { "pod": "web-0", "uid": "u", "node": "node-1", "since": "2026-01-01T00:00:00Z" },
        "token": 3, "eligible": 2, "members": 2, "ready": "2/2",
        "history": [{
            "token": 3, "from": "web-1", "to": "web-0", "reason": "Silent", "at": "2026-01-01T00:00:00Z",
            "duration": "5s41ms",
        }],
        "conditions": [
            condition("Accepted", "True", "AsExpected", "the spec can be carried out"),
            condition("Ready", "True", "Active", "web-0 is active"),
            condition("Redundant", "True", "AsExpected", "1 pod could take over"),
        ],
    })
}

#[tokio::test]
async fn status_shows_the_groups_and_one_with_all_that_belongs_to_it() {
    let world = World::new("plugin-status").await;
    let empty = world.text(&["status"]).await;
    assert!(empty.contains("has no LeaderGroups"), "{empty}");
    world.web().await;
    world.group("new").await;
    let text = world.text(&["status"]).await;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["GROUP", "STATE", "ACTIVE"], "{text}");
    assert_eq!(lines[1][..2], ["new", "unknown"], "those with a problem are first: {text}");
    assert_eq!(lines[2][..5], ["web", "ready", "web-0", "node-1", "2/2"], "{text}");
    assert!(!text.contains('\u{1b}'), "no colours without a terminal: {text:?}");
    let everywhere = world.text(&["status", "-A"]).await;
    assert!(everywhere.lines().any(|line| line.starts_with(&world.namespace) && line.contains(" web ")));
    let listed = world.json(&["status"]).await;
    assert_eq!((&listed[1]["group"], &listed[1]["state"]), (&json!("web"), &json!("ready")), "{listed}");

    let one = world.text(&["status", "web"]).await;
    for words in [
        "web: ready. web-0 is active on node-1 for ",
        "token 3; 2 of 2 pods eligible",
        "web-0  active   node-1  yes ",
        "the active pod  web-0",
        "1 pod could take over",
        "the former pod did not answer",
    ] {
        assert!(one.contains(words), "no {words:?} in:\n{one}");
    }
    let one = world.json(&["status", &format!("{}/web", world.namespace)]).await;
    assert_eq!(
        (&one["pods"][1]["pod"], &one["pods"][1]["eligible"]),
        (&json!("web-1"), &json!(true)),
        "{one}"
    );
    assert_eq!(one["services"][0]["endpoints"], json!(["web-0"]), "{one}");
    let yaml = world.text(&["status", "web", "-o", "yaml"]).await;
    assert!(yaml.contains("state: ready") && yaml.contains("token: 3"), "{yaml}");
}

#[tokio::test]
async fn a_watch_prints_a_line_for_each_change() {
    let world = World::new("plugin-watch").await;
    world.web().await;
    let mut child = Running(world.command(&["status", "-w"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Some(Ok(line)) = lines.next()
            && sender.send(line).is_ok()
        {}
    });
    let mut next =
        async || tokio::time::timeout(apiserver::DEADLINE, receiver.recv()).await.unwrap().unwrap();
    let first = next().await;
    assert!(first.contains("/web: ready. web-0 is active"), "{first}");
    // What people do not see is no change.
    world.report("web", json!({ "key": "k" })).await;
    world.report("web", json!({ "eligible": 1 })).await;
    let second = next().await;
    assert!(second.contains("1 of 2 pods eligible"), "{second}");
    world.api::<LeaderGroup>().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    let last = next().await;
    assert!(last.ends_with("/web: deleted"), "{last}");
    // It ends when nobody reads any more, as in `status -w | head`.
    drop(receiver);
    world.group("web").await;
    let (start, mut token) = (std::time::Instant::now(), 0);
    let ended = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < apiserver::DEADLINE, "it goes on without a reader");
        token += 1;
        world.report("web", json!({ "token": token })).await;
    };
    assert!(ended.success(), "{ended:?}");
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn explain_and_history_tell_the_past_and_the_next() {
    let world = World::new("plugin-explain").await;
    world.web().await;
    let uid = world.api::<LeaderGroup>().get("web").await.unwrap().metadata.uid.unwrap();
    world
        .create::<Event>(json!({
            "metadata": { "generateName": "web-" }, "eventTime": "2026-01-01T00:00:00.000000Z",
            "type": "Warning", "reason": "ForeignLabel", "note": "somebody labelled web-1", "action": "Strip",
            "reportingController": "leadergroup.dev", "reportingInstance": "r",
            "regarding": {
                "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup", "name": "web", "uid": uid,
                "namespace": world.namespace,
            },
        }))
        .await;
    let text = world.text(&["explain", "web"]).await;
    for words in [
        "web-0 took over from web-1",
        "(Silent): the former pod did not answer",
        "Event ForeignLabel",
        "somebody labelled web-1",
        "if web-0 fails, web-1 takes over; at once if it is deleted or crashes, after 5s if it does not answer",
        "which probes each pod answers",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
    let text = world.text(&["history", "web"]).await;
    assert!(text.contains("2026-01-01 00:00:00Z") && text.contains("5s41ms  Silent"), "{text}");
    let changes = world.json(&["history", "web"]).await;
    assert_eq!((&changes[0]["from"], &changes[0]["token"]), (&json!("web-1"), &json!(3)), "{changes}");
}

#[tokio::test]
async fn pause_and_resume_change_the_spec_and_nothing_else() {
    let world = World::new("plugin-pause").await;
    world.web().await;
    let groups = world.api::<LeaderGroup>();
    let before = groups.get("web").await.unwrap().spec;
    let text = world.text(&["pause", "web"]).await;
    assert!(text.contains("is paused: web-0 stays active") && text.contains("resume -n"), "{text}");
    assert!(groups.get("web").await.unwrap().spec.paused);
    let text = world.text(&["pause", "web"]).await;
    assert!(text.contains("is paused already"), "{text}");
    let text = world.text(&["status"]).await;
    assert!(text.contains("paused"), "{text}");
    let text = world.text(&["resume", "web"]).await;
    assert!(text.contains("is resumed"), "{text}");
    assert_eq!(groups.get("web").await.unwrap().spec, before);
    assert!(world.text(&["resume", "web"]).await.contains("was not paused"));
}

#[tokio::test]
async fn a_switchover_is_requested_and_its_result_awaited() {
    let world = World::new("plugin-switchover").await;
    world.web().await;
    let requested = world.text(&["switchover", "web", "--to", "web-1"]).await;
    assert!(requested.starts_with("requested"), "{requested}");
    let group = world.api::<LeaderGroup>().get("web").await.unwrap();
    let annotations = group.metadata.annotations.clone().unwrap();
    assert_eq!(annotations[SWITCHOVER_TO_ANNOTATION], "web-1");
    let writers: Vec<_> =
        group.metadata.managed_fields.iter().flatten().filter_map(|it| it.manager.clone()).collect();
    assert!(writers.contains(&"kubectl-leadergroup".to_owned()), "{writers:?}");
    let text = world.text(&["explain", "web"]).await;
    assert!(text.contains("a switchover is requested"), "{text}");

    // An operator that answers each request.
    for (result, message) in [("Done", "web-1 is active with token 4"), ("Refused", "the group is paused")] {
        let asked = world.api::<LeaderGroup>().get("web").await.unwrap().metadata.annotations.unwrap();
        let old = asked[SWITCHOVER_ANNOTATION].clone();
        let answer = async {
            let is_asked = |group: Option<&LeaderGroup>| {
                let annotations = group.and_then(|group| group.metadata.annotations.as_ref());
                annotations.is_some_and(|annotations| annotations[SWITCHOVER_ANNOTATION] != old)
            };
            let waited = kube::runtime::wait::await_condition(world.api::<LeaderGroup>(), "web", is_asked);
            let group = tokio::time::timeout(apiserver::DEADLINE, waited).await.unwrap().unwrap().unwrap();
            let request = group.metadata.annotations.unwrap()[SWITCHOVER_ANNOTATION].clone();
            let status = json!({ "request": request, "result": result, "message": message });
            world.report("web", json!({ "switchover": status })).await;
        };
        let args = ["switchover", "web", "--wait"];
        let ((status, text, errors), ()) = tokio::join!(world.run(&args), answer);
        assert_eq!(status, i32::from(result == "Refused"), "{text}{errors}");
        assert!(format!("{text}{errors}").contains(message), "{text}{errors}");
    }
    let late = world.complaint(&["switchover", "web", "--wait", "--timeout", "200ms"]).await;
    assert!(late.contains("no result after 200ms") && late.contains("kubectl leadergroup doctor"), "{late}");
}

#[tokio::test]
async fn the_doctor_finds_nothing_wrong_in_a_good_world_and_names_each_remedy_in_a_bad_one() {
    let world = World::new("plugin-doctor").await;
    world.web().await;
    world
        .create::<Deployment>(json!({
            "metadata": {
                "name": "leadergroup",
                "labels": {
                    "app.kubernetes.io/part-of": "leadergroup", "app.kubernetes.io/component": "operator",
                    "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
                },
            },
            "spec": {
                "replicas": 2, "selector": { "matchLabels": { "app": "operator" } },
                "template": {
                    "metadata": { "labels": { "app": "operator" } },
                    "spec": { "containers": [{ "name": "operator", "image": "none" }] },
                },
            },
        }))
        .await;
    let deployments = world.api::<Deployment>();
    let running = Patch::Merge(json!({ "status": { "replicas": 2, "readyReplicas": 2 } }));
    deployments.patch_status("leadergroup", &PatchParams::default(), &running).await.unwrap();
    let text = world.text(&["doctor", "web"]).await;
    for words in ["has 2 ready replicas", "all that the commands need", "Nothing is wrong."] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }

    // A template that sets the label, a Service that forgot it, and an operator that does not run.
    let down = Patch::Merge(json!({ "status": { "readyReplicas": null } }));
    deployments.patch_status("leadergroup", &PatchParams::default(), &down).await.unwrap();
    let selector = json!({ "spec": { "selector": { "leadergroup.dev/role": null } } });
    world.api::<Service>().patch("web", &PatchParams::default(), &Patch::Merge(selector)).await.unwrap();
    world
        .create::<Deployment>(json!({
            "metadata": { "name": "web" },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web", "leadergroup.dev/role": "standby" } },
                    "spec": { "containers": [{
                        "name": "main", "image": "none",
                        "readinessProbe": { "httpGet": { "port": "web", "path": "/" } },
                    }] },
                },
            },
        }))
        .await;
    let (status, text, errors) = world.run(&["doctor", "web"]).await;
    assert_eq!(status, 1, "{text}{errors}");
    for words in [
        "has no ready replica: nothing fails over",
        "kubectl -n ",
        "Service web selects all pods of the group, and none selects the active one",
        "add leadergroup.dev/role: active to the selector",
        "the pod template of Deployment web sets leadergroup.dev/role",
        "asks for the port web, which no container of Deployment web has",
        "4 things are wrong.",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
    let (status, text, _) = world.run(&["doctor", "web", "-o", "json"]).await;
    let findings: Vec<Value> = serde_json::from_str(&text).unwrap();
    let wrong = findings.iter().filter(|finding| finding["level"] == "wrong").count();
    assert_eq!((status, wrong), (1, 4), "{text}");
    deployments.delete("leadergroup", &kube::api::DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let world = World::new("plugin-errors").await;
    world.web().await;
    let misspelt = world.complaint(&["status", "wbe"]).await;
    assert!(
        misspelt.contains("there is no LeaderGroup wbe") && misspelt.contains("Did you mean web?"),
        "{misspelt}"
    );
    let elsewhere = world.complaint(&["pause", "-n", "default", "web"]).await;
    assert!(elsewhere.contains("There is one in another namespace: add -n "), "{elsewhere}");
    let context = world.complaint(&["--context", "prod", "status"]).await;
    assert!(context.contains("has no context prod") && context.contains("It has: test."), "{context}");
    let file = world.complaint(&["--kubeconfig", "/nowhere", "status"]).await;
    assert!(file.contains("no access to a cluster"), "{file}");

    // A user with the right to list groups only.
    world.act_as(Some("tired"));
    let refused = world.complaint(&["status"]).await;
    assert!(refused.contains("HTTP 403") && refused.contains("Ask an administrator"), "{refused}");
    let refused = world.complaint(&["doctor", "web"]).await;
    assert!(refused.contains("HTTP 403"), "{refused}");
    let name = json!({ "name": world.namespace });
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": name,
        "rules": [{ "apiGroups": ["leadergroup.dev"], "resources": ["leadergroups"], "verbs": ["get", "list"] }],
    }))
    .unwrap();
    Api::all(world.client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": name,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": world.namespace },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tired" }],
    }))
    .unwrap();
    Api::all(world.client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let start = std::time::Instant::now();
    while world.run(&["status"]).await.0 != 0 {
        assert!(start.elapsed() < apiserver::DEADLINE, "the role is not in force");
    }
    let text = world.text(&["status", "web"]).await;
    assert!(text.contains("could not list the pods") && text.contains("CONDITION"), "{text}");
    let refused = world.complaint(&["switchover", "web"]).await;
    assert!(refused.contains("HTTP 403") && refused.contains("edit may change them"), "{refused}");
    let (_, text, _) = world.run(&["doctor", "web"]).await;
    for words in ["you may not patch leadergroups.leadergroup.dev", "could not list the Services"] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}

#[tokio::test]
async fn a_cluster_without_the_definition_is_recognized() {
    let world = World::new("plugin-bare").await;
    let bare = ApiServer::start(&[]).await;
    let definitions: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(bare.client().await);
    definitions.delete("leadergroups.leadergroup.dev", &kube::api::DeleteParams::default()).await.unwrap();
    let kubeconfig = bare.kubeconfig();
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap()];
    let start = std::time::Instant::now();
    while !world
        .complaint(&[&args[..], &["status", "web"]].concat())
        .await
        .contains("does not know LeaderGroups")
    {
        assert!(start.elapsed() < apiserver::DEADLINE, "the definition is still served");
    }
    let (status, text, _) = world.run(&[&args[..], &["doctor"]].concat()).await;
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("does not know leadergroup.dev/v1alpha1"), "{text}");
    assert!(text.contains("install the operator's chart"), "{text}");
}

#[tokio::test]
async fn the_completion_of_each_shell_knows_the_commands() {
    let world = World::new("plugin-completion").await;
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = world.text(&["completion", shell]).await;
        assert!(script.contains("kubectl-leadergroup") && script.contains("switchover"), "{shell}: {script}");
    }
}
