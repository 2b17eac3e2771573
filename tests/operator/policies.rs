//! The chart's admission policies: who may write which marks, and what the operator's account may not write.

use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice, rbac::v1::ClusterRoleBinding};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::{
    DELETION_COST_ANNOTATION, FENCING_ANNOTATION, ROLE_LABEL, SLICE_MANAGER, STAMP_ANNOTATION,
};
use serde_json::{Value, json};

use crate::{apiserver::ApiServer, chart, postgres::eventually};

const OTHERS: &str = "may be set only by the LeaderGroup operator";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// A namespace with the policies of the chart, a pod that the operator has labelled standby, and both accounts.
struct Stage {
    namespace: String,
    others: Client,
    operator: Client,
}

impl Stage {
    async fn new() -> Self {
        let server = ApiServer::shared().await;
        let others = server.client().await;
        let namespace = server.namespace("policies").await;
        chart::create(&others, rendered(&namespace)).await;
        // Only the policies limit it.
        let user = format!("system:serviceaccount:default:{namespace}");
        let admin: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": { "name": namespace },
            "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user }],
            "roleRef": { "kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "cluster-admin" }
        }))
        .unwrap();
        Api::all(others.clone()).create(&PostParams::default(), &admin).await.unwrap();
        let operator = server.client_as(&user).await;
        let stage = Self { namespace, others, operator };
        let params = PostParams::default();
        stage.pods(&stage.others).create(&params, &pod("web", &json!({}))).await.unwrap();
        stage.until_in_force().await;
        let marks = json!({ "metadata": {
            "labels": { ROLE_LABEL: "standby" },
            "annotations": { STAMP_ANNOTATION: "g/1", FENCING_ANNOTATION: "k/1", DELETION_COST_ANNOTATION: "1" },
        } });
        stage.patch(&stage.operator, &marks).await.unwrap();
        stage
    }

    fn pods(&self, client: &Client) -> Api<Pod> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    fn slices(&self, client: &Client) -> Api<EndpointSlice> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    async fn patch(&self, client: &Client, change: &Value) -> kube::Result<Pod> {
        self.pods(client).patch("web", &PatchParams::default(), &Patch::Merge(change)).await
    }

    async fn patch_slice(&self, client: &Client, name: &str, change: &Value) -> kube::Result<EndpointSlice> {
        self.slices(client).patch(name, &PatchParams::default(), &Patch::Merge(change)).await
    }

    /// A policy takes effect a moment after it was created. Each of the four refuses something here.
    async fn until_in_force(&self) {
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        let label = |key: &str| Patch::Merge(json!({ "metadata": { "labels": { key: "active" } } }));
        let create = PostParams { dry_run: true, ..PostParams::default() };
        eventually("the policies are in force", async || {
            let role = self.pods(&self.others).patch("web", &dry, &label(ROLE_LABEL)).await;
            let other = self.pods(&self.operator).patch("web", &dry, &label("app")).await;
            let foreign = self.slices(&self.operator).create(&create, &slice("foreign", "example.com")).await;
            let delete = DeleteParams { dry_run: true, ..DeleteParams::default() };
            let deletion = self.pods(&self.operator).delete("web", &delete).await;
            role.is_err() && other.is_err() && foreign.is_err() && deletion.is_err()
        })
        .await;
    }
}

/// The policies of the chart for an operator of this name, in force in the namespace of this name.
fn rendered(name: &str) -> Vec<Value> {
    let values = format!(
        "fullnameOverride={name},watchNamespaces={{{name}}},managedEndpoints.enabled=true,podDeletion.enabled=true"
    );
    let objects = chart::objects(&chart::render("admission-policies", "default", &values, &[]));
    assert_eq!(objects.len(), 8, "four policies, each with its binding");
    objects
}

fn pod(name: &str, metadata: &Value) -> Pod {
    let mut pod = json!({
        "metadata": { "labels": { "app": "web" }, "annotations": { "example.com/a": "b" } },
        "spec": { "containers": [{ "name": "main", "image": "none" }] }
    });
    for section in ["labels", "annotations"] {
        for (key, value) in metadata[section].as_object().into_iter().flatten() {
            pod["metadata"][section][key] = value.clone();
        }
    }
    pod["metadata"]["name"] = name.into();
    serde_json::from_value(pod).unwrap()
}

fn slice(name: &str, manager: &str) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { MANAGED_BY: manager }, "annotations": { STAMP_ANNOTATION: "g/1" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["198.18.0.7"] }],
        "ports": [{ "port": 80 }]
    }))
    .unwrap()
}

#[track_caller]
fn refused<T>(answer: kube::Result<T>, why: &str) {
    let Err(error) = answer else { panic!("it is accepted, although it {why}") };
    let text = error.to_string();
    assert!(text.contains(why), "it is refused, but not because it {why}: {text}");
}

fn marks() -> [Value; 3] {
    [
        json!({ "labels": { ROLE_LABEL: "active" } }),
        json!({ "annotations": { STAMP_ANNOTATION: "g/2" } }),
        json!({ "annotations": { FENCING_ANNOTATION: "k/2" } }),
    ]
}

#[tokio::test]
async fn only_the_operator_sets_marks_on_pods_and_anyone_removes_them() {
    let stage = Stage::new().await;
    let (others, pods) = (&stage.others, stage.pods(&stage.others));
    for metadata in marks() {
        let change = json!({ "metadata": metadata });
        refused(stage.patch(others, &change).await, OTHERS);
        let params = PatchParams::default();
        refused(pods.patch_status("web", &params, &Patch::Merge(&change)).await, OTHERS);
        refused(pods.create(&PostParams::default(), &pod("intruder", &metadata)).await, OTHERS);
        // The marks of a binding would be copied to the pod.
        for path in ["pods/web/binding", "bindings"] {
            let mut metadata = metadata.clone();
            metadata["name"] = "web".into();
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": { "kind": "Node", "name": "n" }
            });
            let path = format!("/api/v1/namespaces/{}/{path}", stage.namespace);
            let request = http::Request::post(path).header("content-type", "application/json");
            let request = request.body(serde_json::to_vec(&binding).unwrap()).unwrap();
            refused(others.request::<Value>(request).await, OTHERS);
        }
    }
    let keeps = json!({ "metadata": { "labels": { "tier": "a" }, "annotations": { "example.com/a": "c" } } });
    stage.patch(others, &keeps).await.unwrap();
    let bare = json!({ "metadata": {
        "labels": { ROLE_LABEL: null }, "annotations": { STAMP_ANNOTATION: null, FENCING_ANNOTATION: null }
    } });
    let found = stage.patch(others, &bare).await.unwrap();
    assert!(!found.labels().contains_key(ROLE_LABEL) && !found.annotations().contains_key(STAMP_ANNOTATION));
    for metadata in marks() {
        refused(stage.patch(others, &json!({ "metadata": metadata })).await, OTHERS);
    }
}

#[tokio::test]
async fn on_pods_the_operator_changes_only_its_marks() {
    let stage = Stage::new().await;
    for metadata in marks() {
        stage.patch(&stage.operator, &json!({ "metadata": metadata })).await.unwrap();
    }
    let (labels, annotations) = ("may change only the labels", "may change only its own annotations");
    let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "u" }]);
    for (metadata, why) in [
        (json!({ "labels": { "app": "other" } }), labels),
        (json!({ "labels": { "tier": "a" } }), labels),
        (json!({ "labels": { "app": null } }), labels),
        (json!({ "annotations": { "example.com/a": "c" } }), annotations),
        (json!({ "annotations": { "example.com/other": "c" } }), annotations),
        (json!({ "annotations": { "example.com/a": null } }), annotations),
        (json!({ "finalizers": ["example.com/stuck"] }), "may change neither owners nor finalizers"),
        (json!({ "ownerReferences": owner }), "may change neither owners nor finalizers"),
    ] {
        refused(stage.patch(&stage.operator, &json!({ "metadata": metadata })).await, why);
    }
    let image = json!({ "spec": { "containers": [{ "name": "main", "image": "other" }] } });
    refused(stage.patch(&stage.operator, &image).await, "may not change what runs in a pod");
}

#[tokio::test]
async fn only_the_operator_writes_its_slices_and_it_writes_no_others() {
    let stage = Stage::new().await;
    let (others, operator) = (&stage.others, &stage.operator);
    let (create, only) =
        (PostParams::default(), "only the LeaderGroup operator may write this EndpointSlice");
    refused(stage.slices(others).create(&create, &slice("own", SLICE_MANAGER)).await, only);
    stage.slices(operator).create(&create, &slice("own", SLICE_MANAGER)).await.unwrap();
    stage.slices(others).create(&create, &slice("foreign", "example.com")).await.unwrap();
    for change in [
        json!({ "endpoints": [{ "addresses": ["198.18.0.8"] }] }),
        json!({ "endpoints": [] }),
        json!({ "ports": [{ "port": 81 }] }),
        json!({ "metadata": { "labels": { "kubernetes.io/service-name": "other" } } }),
        json!({ "metadata": { "labels": { MANAGED_BY: null } } }),
        json!({ "metadata": { "annotations": { STAMP_ANNOTATION: "g/2" } } }),
    ] {
        refused(stage.patch_slice(others, "own", &change).await, only);
    }
    let takes = json!({ "metadata": { "labels": { MANAGED_BY: SLICE_MANAGER } } });
    refused(stage.patch_slice(others, "foreign", &takes).await, only);

    let limit = "may write only EndpointSlices that carry its label";
    let empties = json!({ "endpoints": [] });
    refused(stage.slices(operator).create(&create, &slice("third", "example.com")).await, limit);
    refused(stage.patch_slice(operator, "foreign", &empties).await, limit);
    refused(stage.patch_slice(operator, "foreign", &takes).await, limit);
    let gives = json!({ "metadata": { "labels": { MANAGED_BY: "example.com" } } });
    refused(stage.patch_slice(operator, "own", &gives).await, limit);
    refused(stage.slices(operator).delete("foreign", &DeleteParams::default()).await, limit);
    stage.patch_slice(operator, "own", &empties).await.unwrap();

    // The garbage collector changes owners, and deletes slices.
    let orphaned = json!({ "metadata": { "ownerReferences": [] } });
    stage.patch_slice(others, "own", &orphaned).await.unwrap();
    stage.slices(others).delete("own", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_operator_deletes_only_standbys() {
    let stage = Stage::new().await;
    let (others, delete) = (stage.pods(&stage.others), DeleteParams::default());
    let limit = "may delete only pods that are standbys of a LeaderGroup";
    refused(stage.pods(&stage.operator).delete("web", &delete).await, limit);
    let demoted = json!({ "metadata": { "annotations": { FENCING_ANNOTATION: null } } });
    stage.patch(&stage.operator, &demoted).await.unwrap();
    stage.pods(&stage.operator).delete("web", &delete.clone().grace_period(0)).await.unwrap();
    others.create(&PostParams::default(), &pod("other", &json!({}))).await.unwrap();
    refused(stage.pods(&stage.operator).delete("other", &delete).await, limit);
    others.delete("other", &delete).await.unwrap();
}
