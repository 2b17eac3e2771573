//! Pods that get the agent: by `leadergroup agent inject`, and by the chart's policies, which must give the same.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::{Value, json};

use crate::{apiserver::ApiServer, chart, postgres::eventually};

const LABEL: &str = "leadergroup.dev/agent";
const MUTATING: &str = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy";

/// Runs `leadergroup agent inject -f -`.
fn inject(manifest: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leadergroup"));
    command.args(["agent", "inject", "-f", "-"]).args(flags);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn rendered(name: &str, flags: &[&str]) -> Output {
    let set = format!("fullnameOverride={name},watchNamespaces={{{name}}},agent.injection.enabled=true");
    chart::render("agent-injection", "default", &set, flags)
}

/// What the API server would store.
async fn create(client: &Client, path: &str, object: &Value) -> kube::Result<Value> {
    let path = format!("{path}?dryRun=All&fieldValidation=Strict");
    let request = http::Request::post(path).header("content-type", "application/json");
    client.request(request.body(serde_json::to_vec(object).unwrap()).unwrap()).await
}

/// A namespace in which the chart's policies are in force.
struct Stage {
    client: Client,
    pods: String,
}

impl Stage {
    async fn new() -> Self {
        let server = ApiServer::shared().await;
        let client = server.client().await;
        let namespace = server.namespace("injection").await;
        let policies = chart::objects(&rendered(&namespace, &["--api-versions", MUTATING]));
        chart::create(&client, policies).await;
        let stage = Self { client, pods: format!("/api/v1/namespaces/{namespace}/pods") };
        stage.until_in_force().await;
        stage
    }

    /// Each of the two policies takes effect a moment after it was created.
    async fn until_in_force(&self) {
        let (good, bad) = (pod(&json!({})), pod(&json!({ "command": null })));
        eventually("the policies are in force", async || {
            let changed = self.create(&good).await.is_ok_and(|pod| !pod["spec"]["initContainers"].is_null());
            changed && self.create(&bad).await.is_err()
        })
        .await;
    }

    async fn create(&self, pod: &Value) -> kube::Result<Value> {
        create(&self.client, &self.pods, pod).await
    }
}

/// A pod that asks for the agent. `container` changes its container.
fn pod(container: &Value) -> Value {
    let mut main =
        json!({ "name": "main", "image": "main:1", "command": ["/bin/main", "-v"], "args": ["x"] });
    for (field, value) in container.as_object().unwrap() {
        main[field] = value.clone();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "web", "labels": { LABEL: "nightly" } },
        "spec": { "containers": [main], "schedulingGates": [{ "name": LABEL }] },
    })
}

fn with(path: &str, value: Value) -> Value {
    let mut pod = pod(&json!({}));
    let (parent, field) = path.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[field] = value;
    pod
}

fn annotated(container: &Value, annotations: Value) -> Value {
    let mut pod = pod(container);
    pod["metadata"]["annotations"] = annotations;
    pod["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "other", "image": "b", "command": ["b"] }));
    pod
}

/// Pods that can get the agent.
fn accepted() -> Vec<Value> {
    let web = json!([{ "name": "web", "containerPort": 8080 }]);
    let exec = json!({ "exec": { "command": ["true"] }, "periodSeconds": 3 });
    vec![
        pod(&json!({})),
        pod(
            &json!({ "ports": web, "readinessProbe": { "httpGet": { "path": "ready", "port": "web" }, "periodSeconds": 3 } }),
        ),
        pod(&json!({ "readinessProbe": { "httpGet": { "path": "/a?b=c", "port": 80 } } })),
        pod(&json!({ "readinessProbe": { "httpGet": { "port": 80, "scheme": "HTTP" } } })),
        pod(
            &json!({ "ports": web, "readinessProbe": { "tcpSocket": { "port": "web" }, "timeoutSeconds": 2 } }),
        ),
        pod(&json!({ "env": [{ "name": "A", "value": "b" }], "livenessProbe": exec, "startupProbe": exec })),
        pod(
            &json!({ "resources": { "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "100m" } } }),
        ),
        pod(&json!({ "terminationMessagePath": "/end" })),
        pod(&json!({ "terminationMessagePath": "/dev/termination-log" })),
        with("/spec/volumes", json!([{ "name": "data", "emptyDir": {} }])),
        with("/spec/initContainers", json!([{ "name": "first", "image": "first" }])),
        annotated(
            &json!({ "readinessProbe": exec }),
            json!({ "leadergroup.dev/agent-ready": "http://:80/x" }),
        ),
        annotated(
            &json!({ "readinessProbe": { "grpc": { "port": 80 } } }),
            json!({ "leadergroup.dev/agent-ready": "tcp://:80", "leadergroup.dev/agent-stop-timeout": "7" }),
        ),
        annotated(&json!({}), json!({ "leadergroup.dev/agent-container": "other" })),
        with("/spec/terminationGracePeriodSeconds", 26.into()),
        with("/spec/schedulingGates", json!([{ "name": "example.com/a" }, { "name": LABEL }])),
        with("/spec/schedulingGates", json!([{ "name": LABEL }, { "name": "example.com/a" }])),
    ]
}

/// Pods that cannot, and a word of the reason.
fn refused() -> Vec<(Value, &'static str)> {
    let probe = |probe: Value| pod(&json!({ "readinessProbe": probe }));
    let headers = json!({ "httpGet": { "port": 80, "httpHeaders": [{ "name": "A", "value": "b" }] } });
    let data = json!([{ "name": "data", "mountPath": "/agent/" }]);
    let mut mounted = with("/spec/volumes", json!([{ "name": "data", "emptyDir": {} }]));
    mounted["spec"]["containers"][0]["volumeMounts"] = data;
    let note = |key: &str, value: &str| {
        annotated(&json!({}), json!({ format!("leadergroup.dev/agent-{key}"): value }))
    };
    vec![
        (pod(&json!({ "command": null })), "no command"),
        (with("/spec/shareProcessNamespace", true.into()), "process 1"),
        (with("/spec/hostPID", true.into()), "process 1"),
        (with("/spec/volumes", json!([{ "name": "agent", "emptyDir": {} }])), "taken"),
        (with("/spec/initContainers", json!([{ "name": "agent", "image": "a" }])), "taken"),
        (pod(&json!({ "ports": [{ "name": "agent", "containerPort": 1 }] })), "taken"),
        (pod(&json!({ "ports": [{ "containerPort": 9470 }] })), "port 9470"),
        (mounted, "taken"),
        (pod(&json!({ "env": [{ "name": "LEADERGROUP_POD", "value": "x" }] })), "LEADERGROUP_POD"),
        (pod(&json!({ "livenessProbe": { "tcpSocket": { "port": 80 } } })), "livenessProbe"),
        (pod(&json!({ "startupProbe": { "httpGet": { "port": 80 } } })), "startupProbe"),
        (probe(json!({ "exec": { "command": ["true"] } })), "agent-ready"),
        (probe(json!({ "grpc": { "port": 80 } })), "agent-ready"),
        (probe(json!({ "httpGet": { "port": 80, "scheme": "HTTPS" } })), "agent-ready"),
        (probe(json!({ "httpGet": { "port": 80, "host": "example.com" } })), "agent-ready"),
        (probe(headers), "agent-ready"),
        (probe(json!({ "httpGet": { "port": "unknown" } })), "agent-ready"),
        (probe(json!({ "tcpSocket": { "port": 80, "host": "example.com" } })), "agent-ready"),
        (note("ready", "https://:80/"), "http://:PORT/PATH"),
        (note("stop-timeout", "7s"), "number of seconds"),
        (note("container", "third"), "no container named third"),
        (note("stop-timeout", "30"), "the kubelet would kill the agent first"),
        (with("/spec/terminationGracePeriodSeconds", 25.into()), "the kubelet would kill the agent first"),
    ]
}

#[tokio::test]
async fn the_policy_and_the_command_give_the_same_pod() {
    let stage = Stage::new().await;
    for pod in accepted() {
        let by_policy = stage.create(&pod).await.unwrap_or_else(|error| panic!("{pod}: {error}"));
        let mut by_command = chart::objects(&inject(&pod.to_string(), &[])).remove(0);
        // The policy finds the agent in this one, and has nothing to do.
        let with_label = stage.create(&by_command).await.unwrap();
        assert_eq!(with_label["spec"], by_policy["spec"], "{pod}");
        // A user who has written all of it may have written the gate as well.
        let mut gated = by_command.clone();
        gated["spec"]["schedulingGates"] = pod["spec"]["schedulingGates"].clone();
        let opened = stage.create(&gated).await.unwrap();
        assert_eq!(opened["spec"], by_policy["spec"], "{pod}");
        let again = chart::objects(&inject(&gated.to_string(), &[])).remove(0);
        assert_eq!(again["spec"], by_command["spec"], "{pod}");
        by_command["metadata"]["labels"] = json!({ "app": "web" });
        let without = stage.create(&by_command).await.unwrap();
        assert_eq!(without["spec"], by_policy["spec"], "{pod}");
        assert_eq!(by_policy["metadata"]["labels"], pod["metadata"]["labels"]);
    }
}

#[tokio::test]
async fn the_policy_and_the_command_refuse_the_same_pods_and_say_why() {
    let stage = Stage::new().await;
    for (pod, why) in refused() {
        let output = inject(&pod.to_string(), &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{pod}: {said}");
        assert!(said.starts_with("leadergroup: Pod web: ") && said.contains(why), "{pod}: {said}");
        let error = stage.create(&pod).await.expect_err(&format!("{pod}: {said}")).to_string();
        assert!(
            error.contains("the LeaderGroup agent cannot run the program") && error.contains(why),
            "{pod}: {error}"
        );
    }
    let mut other = chart::objects(&inject(&pod(&json!({})).to_string(), &[])).remove(0);
    other["metadata"]["labels"][LABEL] = "daily".into();
    let error = stage.create(&other).await.expect_err("an agent of another group").to_string();
    assert!(error.contains("another LeaderGroup"), "{error}");
}

/// While the policies are not in force, the gate keeps the program from running. So it is needed, and is removed only
/// together with the agent's arrival.
#[tokio::test]
async fn a_pod_that_would_run_without_the_policy_is_refused() {
    let stage = Stage::new().await;
    for gates in [json!(null), json!([{ "name": "example.com/a" }])] {
        let pod = with("/spec/schedulingGates", gates.clone());
        let error = stage.create(&pod).await.expect_err(&gates.to_string()).to_string();
        assert!(error.contains("no scheduling gate leadergroup.dev/agent"), "{error}");
    }
    let with_agent = stage.create(&pod(&json!({}))).await.unwrap();
    assert!(with_agent["spec"]["schedulingGates"].is_null(), "{with_agent}");
    let unlabelled =
        Stage { client: stage.client.clone(), pods: "/api/v1/namespaces/default/pods".to_owned() };
    let without_policy = unlabelled.create(&pod(&json!({}))).await.unwrap();
    assert_eq!(without_policy["spec"]["schedulingGates"], json!([{ "name": LABEL }]), "it is not scheduled");
}

#[tokio::test]
async fn pods_without_the_label_are_untouched() {
    let stage = Stage::new().await;
    for mut pod in accepted().into_iter().chain(refused().into_iter().map(|(pod, _)| pod)) {
        pod["metadata"]["labels"] = json!({ "app": "web" });
        let Ok(stored) = stage.create(&pod).await else { continue };
        let (wanted, found): (Pod, Pod) =
            (serde_json::from_value(pod).unwrap(), serde_json::from_value(stored).unwrap());
        let parts = |pod: Pod| {
            let spec = pod.spec.unwrap();
            let commands = spec.containers.into_iter().map(|container| container.command);
            (commands.collect::<Vec<_>>(), spec.init_containers.unwrap_or_default().len(), spec.volumes)
        };
        assert_eq!(parts(found), parts(wanted));
    }
}

#[tokio::test]
async fn what_the_command_prints_is_accepted_by_the_api_server_and_is_the_same_the_second_time() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (server.client().await, server.namespace("printed").await);
    let manifest = format!(
        "# ours\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n---\n\
         apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: nightly, namespace: {namespace}}}\n\
         spec:\n  serviceName: nightly\n  selector: {{matchLabels: {{app: nightly}}}}\n  template:\n    \
         metadata: {{labels: {{app: nightly}}}}\n    spec:\n      containers:\n      - name: main\n        image: m\n        \
         command: [sh, -c, 'echo yes']\n"
    );
    let output = inject(&manifest, &["--group=nightly", "--image=example.com/agent:2", "--stop-timeout=9"]);
    let all = chart::objects(&output);
    assert_eq!(all.len(), 3);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("# ours\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n"),
        "{text}"
    );
    for (object, path) in [
        (&all[1], format!("/apis/apps/v1/namespaces/{namespace}/statefulsets")),
        (&all[2], format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings")),
    ] {
        create(&client, &path, object).await.unwrap_or_else(|error| panic!("{object}: {error}"));
    }
    let again = inject(&text, &["--group=nightly"]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
    let nothing = inject("kind: Service", &["--group=nightly"]);
    assert_eq!((nothing.status.code(), nothing.stdout.len()), (Some(1), 0));
}

#[test]
fn the_chart_says_which_api_server_the_policy_needs() {
    let output = rendered("lg", &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("Kubernetes 1.36") && said.contains("agent inject"),
        "{said}"
    );
}
