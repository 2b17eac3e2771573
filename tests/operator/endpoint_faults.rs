//! Endpoints that the operator manages, and what keeps them from being right: slices that others add, candidates that
//! cannot become active, and writes that are refused.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{
    apiserver::admission::Policy,
    endpoints::{SLICE, Stage},
    kubelet::active,
    objects::condition,
    postgres::{self, eventually},
};

/// Waits until the condition Routed has this reason, and a message with these words.
async fn routed(stage: &Stage, reason: &str, words: &[&str]) {
    eventually(&format!("Routed to say {reason} with {words:?}"), async || {
        let (_, found, message) = condition(&stage.groups, "web", "Routed").await;
        found == reason && words.iter().all(|word| message.contains(word))
    })
    .await;
}

/// Somebody else creates a slice for a Service, without the label of a group.
async fn add_slice(stage: &Stage, name: &str, service: &str, by: &str) {
    let labels =
        json!({ "kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": by });
    let slice = json!({
        "metadata": { "name": name, "labels": labels },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["198.18.9.99"] }]
    });
    let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
    stage.slices.0.create(&PostParams::default(), &slice).await.unwrap();
}

#[tokio::test]
async fn endpoints_that_others_add_are_reported_whenever_they_are_there() {
    let stage = Stage::set_up("endpoints-added", [&["198.18.9.7"], &["198.18.9.8"]]).await;
    let Stage { slices, .. } = &stage;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    stage.create_service("front", "SingleStack").await;
    let mut operator = stage.start_operator(&url);
    stage.until_ready().await;
    let (first, second) = stage.roles().await;
    slices.until(SLICE, Some(&[&first])).await;
    routed(&stage, "AsExpected", &["front"]).await;

    // The slice that the operator writes is there, and stays as it is.
    add_slice(&stage, "front-old", "front", "endpointslice-controller.k8s.io").await;
    routed(&stage, "ServiceUnusable", &["Service front", "delete EndpointSlice front-old"]).await;
    // A change of holder goes on.
    stage.request_switchover().await;
    slices.until(SLICE, Some(&[second])).await;
    let emptied = Patch::Merge(json!({ "endpoints": [] }));
    slices.0.patch("front-old", &PatchParams::default(), &emptied).await.unwrap();
    routed(&stage, "AsExpected", &[]).await;

    // What came while no replica ran.
    assert!(operator.end().await.0.success(), "{}", operator.log());
    add_slice(&stage, "front-copy", "front", "endpointslicemirroring-controller.k8s.io").await;
    let mut operator = stage.start_operator(&url);
    let remedy = "delete Endpoints front, which Kubernetes copies to EndpointSlice front-copy";
    routed(&stage, "ServiceUnusable", &[remedy]).await;
    slices.0.delete("front-copy", &DeleteParams::default()).await.unwrap();
    routed(&stage, "AsExpected", &[]).await;

    // A Service that names the group later.
    add_slice(&stage, "back-old", "back", "somebody").await;
    stage.create_service("back", "SingleStack").await;
    routed(&stage, "ServiceUnusable", &["Service back", "delete EndpointSlice back-old"]).await;
    slices.0.delete("back-old", &DeleteParams::default()).await.unwrap();
    slices.until("back-leadergroup-ipv4", Some(&[second])).await;
    routed(&stage, "AsExpected", &[]).await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_pod_that_lost_its_label_does_not_stay_an_endpoint_while_no_other_can_become_active() {
    let stage = Stage::set_up("endpoints-stripped", [&["198.18.9.11"], &["198.18.9.12"]]).await;
    let Stage { pods, slices, .. } = &stage;
    let (database, _store) = postgres::migrated().await;
    stage.create_service("front", "SingleStack").await;
    let mut operator = stage.start_operator(&database.url());
    stage.until_ready().await;
    let (first, second) = stage.roles().await;
    slices.until(SLICE, Some(&[&first])).await;
    let promoted = json!({ "leadergroup.dev/role": "active" });
    let condition = format!(
        "object.metadata.name == '{second}' && 'leadergroup.dev/role' in object.metadata.labels && \
         object.metadata.labels['leadergroup.dev/role'] == 'active'"
    );
    let client = stage.server.client().await;
    let refusal = (condition.as_str(), "never active");
    let policy = Policy::refuse(client, &stage.namespace, refusal, (second, &promoted)).await;
    // Nothing ends it: its object stays.
    pods.delete(&first, &DeleteParams::default()).await.unwrap();
    eventually("the strip", async || active(pods).await.is_empty()).await;
    slices.until(SLICE, Some(&[])).await;
    assert!(pods.get_opt(&first).await.unwrap().is_some());
    policy.lift(second, &promoted).await;
    slices.until(SLICE, Some(&[second])).await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_slice_whose_write_is_refused_is_reported_and_the_others_are_right() {
    let stage = Stage::set_up(
        "endpoints-refused",
        [&["198.18.9.13", "2001:db8:9::13"], &["198.18.9.14", "2001:db8:9::14"]],
    )
    .await;
    let slices = &stage.slices;
    let (database, _store) = postgres::migrated().await;
    stage.create_service("front", "RequireDualStack").await;
    let mut operator = stage.start_operator(&database.url());
    stage.until_ready().await;
    let (first, second) = stage.roles().await;
    let sixth = "front-leadergroup-ipv6";
    for name in [SLICE, sixth] {
        slices.until(name, Some(&[&first])).await;
    }
    let client = stage.server.client().await;
    let refusal = (&*format!("object.metadata.name == '{sixth}'"), "frozen for the audit");
    let resource = ("discovery.k8s.io", "endpointslices");
    let policy = Policy::install(client, &stage.namespace, resource, refusal).await;
    let edit = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/edit": "1" } } }));
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    eventually("the policy", async || slices.0.patch(sixth, &dry_run, &edit).await.is_err()).await;

    stage.request_switchover().await;
    slices.until(SLICE, Some(&[second])).await;
    let words = [sixth, &format!("still routes to {first}"), "frozen for the audit"];
    routed(&stage, "WriteRefused", &words).await;
    assert_eq!(slices.pods(sixth).await, Some(vec![first]));
    let ready = condition(&stage.groups, "web", "Ready").await;
    assert_eq!((&*ready.0, &*ready.1), ("False", "WriteRefused"));

    policy.remove().await;
    slices.until(sixth, Some(&[second])).await;
    routed(&stage, "AsExpected", &[]).await;
    assert_eq!(slices.pods(SLICE).await, Some(vec![second.to_owned()]));
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
