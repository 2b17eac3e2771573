//! Whole renderings of the chart, for each file of values in its folder `ci`: the API server accepts their objects, and
//! what applies to all objects or all pods is true of each.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kube::{
    Api, Client,
    api::{DynamicObject, GroupVersionKind, Patch, PatchParams},
    discovery::{Scope, pinned_kind},
};
use serde_json::Value;

use crate::{
    apiserver::{ApiServer, programs},
    chart::objects,
};

/// The rendering with this file of values, for an API server with the APIs that the file names.
fn rendered(values: &Path, namespace: &str) -> Vec<Value> {
    let text = fs::read_to_string(values).unwrap();
    let named = text.lines().filter_map(|line| line.strip_prefix("# with the API: "));
    let known = ["monitoring.coreos.com/v1", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"];
    let apis = named.chain(known).flat_map(|api| ["--api-versions", api]);
    let output = Command::new(programs::find(&["helm"]))
        .args(["template", "test", "--namespace", namespace, "--values"])
        .arg(values)
        .args(apis)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/leadergroup"))
        .output()
        .unwrap();
    objects(&output).into_iter().filter(|object| !object.is_null()).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/leadergroup/ci")
}

/// The name of each file of values, and its rendering.
fn renderings(namespace: &str) -> Vec<(String, Vec<Value>)> {
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let mut all: Vec<_> = files
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix("-values.yaml")?.to_owned();
            Some((name, rendered(&path, namespace)))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(all.len() >= 13, "{}", all.len());
    all
}

/// The pod template of a workload, or the pod itself.
fn pod(object: &Value) -> Option<&Value> {
    if object["kind"] == "Pod" { Some(object) } else { object.pointer("/spec/template") }
}

/// Sends the object to the API server as `kubectl apply --server-side --dry-run=server --validate=strict` does.
async fn try_out(client: &Client, mut object: Value, namespace: &str) -> Result<(), kube::Error> {
    if object.pointer("/metadata/namespace").is_some_and(|name| name != "kube-node-lease") {
        object["metadata"]["namespace"] = namespace.into();
    }
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
    let (resource, capabilities) = pinned_kind(client, &kind).await?;
    let api: Api<DynamicObject> = match (capabilities.scope, &object.metadata.namespace) {
        (Scope::Cluster, None) => Api::all_with(client.clone(), &resource),
        (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), namespace, &resource),
        (scope, namespace) => panic!("{kind:?} is {scope:?}, and has the namespace {namespace:?}"),
    };
    let params = PatchParams::apply("tests").force().validation_strict();
    // The pod of the test needs it.
    let params = if kind.kind == "ServiceAccount" { params } else { params.dry_run() };
    api.patch(object.metadata.name.as_ref().unwrap(), &params, &Patch::Apply(&object)).await.map(drop)
}

#[tokio::test]
async fn the_api_server_accepts_every_object() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("rendered").await;
    let client = server.client().await;
    let mut seen = 0;
    for (name, objects) in renderings(&namespace) {
        let theirs = |group: &Value| {
            let group = group.as_str().unwrap();
            group.starts_with("monitoring.coreos.com") || group.starts_with("postgresql.cnpg.io")
        };
        let (accounts, others): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .filter(|object| !theirs(&object["apiVersion"]))
            .partition(|object| object["kind"] == "ServiceAccount");
        for object in accounts.into_iter().chain(others) {
            let what = format!("{name}: {} {}", object["kind"], object["metadata"]["name"]);
            try_out(&client, object, &namespace).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            seen += 1;
        }
    }
    assert!(seen > 300, "{seen}");
}

#[tokio::test]
async fn a_field_that_does_not_exist_is_refused() {
    let server = ApiServer::shared().await;
    let namespace = server.namespace("rendered").await;
    let account = serde_json::json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": { "name": "odd", "namespace": namespace },
        "automountToken": false
    });
    let error = try_out(&server.client().await, account, &namespace).await.unwrap_err();
    assert!(error.to_string().contains("automountToken"), "{error}");
}

#[test]
fn all_objects_carry_the_common_labels_and_annotations_and_all_pods_the_labels() {
    let objects = rendered(&folder().join("everything-values.yaml"), "test");
    assert!(objects.len() > 40, "{}", objects.len());
    for object in &objects {
        let metadata = &object["metadata"];
        let what = format!("{} {}", object["kind"], metadata["name"]);
        assert_eq!(metadata["labels"]["example.com/team"], "platform", "{what}");
        assert_eq!(metadata["annotations"]["example.com/cost-center"], "platform", "{what}");
        if let Some(pod) = pod(object) {
            assert_eq!(pod["metadata"]["labels"]["example.com/team"], "platform", "the pods of {what}");
        }
        assert_eq!(object.pointer("/spec/selector/matchLabels/example.com~1team"), None, "{what}");
    }
    let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    assert_eq!(of("ServiceAccount")["metadata"]["annotations"]["example.com/identity"], "leadergroup");
}

#[test]
fn a_label_of_one_kind_of_object_replaces_the_common_one() {
    let objects = rendered(&folder().join("same-labels-values.yaml"), "test");
    let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    let pods = &of("Deployment")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(pods["example.com/team"], "pods");
    for (kind, team) in
        [("Deployment", "platform"), ("ServiceMonitor", "monitors"), ("PrometheusRule", "rules")]
    {
        assert_eq!(of(kind)["metadata"]["labels"]["example.com/team"], team, "{kind}");
    }
}

#[test]
fn pods_name_no_ids_on_openshift_or_if_they_are_left_out() {
    for (name, objects) in renderings("test") {
        let kept = match name.as_str() {
            "openshift" | "never-ids" => &[][..],
            "without-ids" => &["fsGroup"],
            _ => &["runAsUser", "runAsGroup", "fsGroup"],
        };
        for object in &objects {
            let Some(pod) = pod(object) else { continue };
            let context = pod["spec"]["securityContext"].as_object().unwrap();
            let what = format!("{name}: {} {}", object["kind"], object["metadata"]["name"]);
            assert!(context.values().all(|value| !value.is_null()), "{what}: {context:?}");
            assert_eq!(context["runAsNonRoot"], true, "{what}");
            assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault", "{what}");
            let ids =
                ["runAsUser", "runAsGroup", "fsGroup"].into_iter().filter(|id| context.contains_key(*id));
            let ids: Vec<&str> = ids.collect();
            // The database has ids of its own, all of which the value `postgresql.runAsUser` sets.
            let kept = if name == "without-ids" && object["kind"] == "StatefulSet" { &[][..] } else { kept };
            assert_eq!(ids, kept, "{what}");
        }
    }
}

#[test]
fn all_pods_run_on_linux_unless_the_values_say_otherwise() {
    for (name, objects) in renderings("test") {
        for object in &objects {
            let Some(pod) = pod(object) else { continue };
            let wanted = if name == "minimal" { Value::Null } else { "linux".into() };
            let chosen = pod.pointer("/spec/nodeSelector/kubernetes.io~1os").cloned().unwrap_or_default();
            assert_eq!(chosen, wanted, "{name}: {} {}", object["kind"], object["metadata"]["name"]);
        }
    }
}
