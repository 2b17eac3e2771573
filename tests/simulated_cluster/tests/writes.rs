//! Writes: revisions, preconditions, dry runs, and the journal.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::advance;

use super::stage::{NAMESPACE, Stage, pod};
use crate::api_server::{Hook, Kind, Verdict};

fn code(answer: Result<impl std::fmt::Debug, kube::Error>) -> (u16, String) {
    match answer {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn revisions_timestamps_and_uids_follow_from_the_clock_and_the_seed() {
    let stage = Stage::new();
    advance(Duration::from_millis(61_700)).await;
    let created: Pod = serde_json::from_value(pod("web-0")).unwrap();
    let created = stage.pods().create(&PostParams::default(), &created).await.unwrap();
    let found = serde_json::to_value(&created.metadata).unwrap();
    assert_eq!(found["creationTimestamp"], "2026-01-01T00:01:01Z");
    assert_eq!((&found["resourceVersion"], &found["generation"]), (&json!("7"), &json!(1)));
    assert_eq!(
        created.uid(),
        Stage::new()
            .pods()
            .create(&PostParams::default(), &serde_json::from_value(pod("web-0")).unwrap())
            .await
            .unwrap()
            .uid()
    );
    let other = stage.pod("web-1");
    assert!(created.uid().unwrap() != other.uid);
}

#[tokio::test(start_paused = true)]
async fn preconditions_of_updates_and_deletions() {
    let stage = Stage::new();
    let (pods, params) = (stage.pods(), PatchParams::default());
    stage.pod("web-0");
    let patch = |metadata| Patch::Merge(json!({ "metadata": metadata }));
    let seen = pods.get("web-0").await.unwrap();
    let version = seen.resource_version().unwrap();
    let bound = patch(json!({ "resourceVersion": version, "labels": { "a": "b" } }));
    pods.patch("web-0", &params, &bound).await.unwrap();
    assert_eq!(code(pods.patch("web-0", &params, &bound).await), (409, "Conflict".into()));
    let other = patch(json!({ "uid": "other", "labels": { "a": "c" } }));
    assert_eq!(code(pods.patch("web-0", &params, &other).await), (422, "Invalid".into()));
    assert_eq!(code(pods.patch("none", &params, &other).await), (404, "NotFound".into()));
    let preconditions = Preconditions { resource_version: Some(version), uid: seen.uid() };
    let delete = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    assert_eq!(code(pods.delete("web-0", &delete).await), (409, "Conflict".into()));
    assert_eq!(code(pods.create(&PostParams::default(), &seen).await), (400, "BadRequest".into()));
    let again: Pod = serde_json::from_value(pod("web-0")).unwrap();
    assert_eq!(code(pods.create(&PostParams::default(), &again).await), (409, "AlreadyExists".into()));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_is_admitted_and_stores_nothing() {
    let stage = Stage::new();
    stage.pod("web-0");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let hook = Hook::webhook("a.test", move |review| {
        noted.lock().push((review.request.dry_run, review.new.is_some()));
        Verdict::Allow
    });
    stage.server.hooks().push(hook);
    let before = stage.server.store().revision();
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    let answer = stage.pods().patch("web-0", &params, &patch).await.unwrap();
    assert_eq!(answer.labels()["a"], "b");
    assert!(!stage.pods().get("web-0").await.unwrap().labels().contains_key("a"));
    assert_eq!((stage.server.store().revision(), &*asked.lock()), (before, &vec![(true, true)]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_marked_and_removed_by_its_kubelet() {
    let stage = Stage::new();
    stage.pod("web-0");
    stage.server.store().take_journal();
    let pods = stage.pods();
    let marked = pods.delete("web-0", &DeleteParams::default()).await.unwrap().unwrap_left();
    let marked = serde_json::to_value(&marked.metadata).unwrap();
    assert_eq!(marked["deletionTimestamp"], "2026-01-01T00:00:30Z");
    pods.delete("web-0", &DeleteParams::default().grace_period(0)).await.unwrap();
    let journal = stage.server.store().take_journal();
    let kinds: Vec<_> = journal.iter().map(|change| (change.new.is_some(), &*change.by)).collect();
    assert_eq!(kinds, [(true, "one"), (true, "one"), (false, "one")]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_a_webhook_begins_again_if_the_object_has_changed() {
    let stage = Stage::new();
    stage.pod("web-0");
    let slow = || Verdict::After(Duration::from_secs(3), Box::new(Verdict::Allow));
    stage.server.hooks().push(Hook::webhook("slow.test", move |_| slow()));
    let (pods, params) = (stage.pods(), PatchParams::default());
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.label("web-0", "other", "x");
    };
    let start = tokio::time::Instant::now();
    let (answer, ()) = futures::join!(pods.patch("web-0", &params, &patch), change);
    let labels = answer.unwrap().labels().clone();
    assert_eq!((labels["a"].as_str(), labels["other"].as_str()), ("b", "x"));
    assert_eq!(start.elapsed(), Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_hang_time_out_and_the_server_gives_up_after_its_own_limit() {
    let stage = Stage::new();
    stage.pod("web-0");
    let (pods, params) = (stage.pods(), PatchParams::default());
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    let hang = |timeout, ignores_failures| Hook {
        timeout: Duration::from_secs(timeout),
        ignores_failures,
        ..Hook::webhook("hung.test", |_| Verdict::Hang)
    };
    for (hook, takes, expected) in [
        (hang(10, false), 10, Some((500, "InternalError"))),
        (hang(10, true), 10, None),
        (hang(40, true), 34, Some((504, "Timeout"))),
    ] {
        *stage.server.hooks() = vec![hook];
        let start = tokio::time::Instant::now();
        let answer = pods.patch("web-0", &params, &patch).await;
        assert_eq!(start.elapsed(), Duration::from_secs(takes));
        match expected {
            None => assert_eq!(answer.unwrap().labels()["a"], "b"),
            Some((wanted, reason)) => assert_eq!(code(answer), (wanted, reason.to_owned())),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lists_by_labels_and_names_and_in_pages() {
    let stage = Stage::new();
    for index in 0..7 {
        stage.pod(&format!("web-{index}"));
    }
    stage.label("web-3", "role", "active");
    let pods = stage.pods();
    let names = |found: Vec<Pod>| found.iter().map(ResourceExt::name_any).collect::<Vec<_>>().join(" ");
    for (selector, expected) in [
        ("role", "web-3"),
        ("role=active,app", "web-3"),
        ("app in (orders, x),!role", "web-0 web-1 web-2 web-4 web-5 web-6"),
        ("role!=active,app notin (x)", "web-0 web-1 web-2 web-4 web-5 web-6"),
        ("app=other", ""),
    ] {
        let found = pods.list(&ListParams::default().labels(selector)).await.unwrap();
        assert_eq!(names(found.items), expected, "{selector}");
    }
    let one = pods.list_metadata(&ListParams::default().fields("metadata.name=web-2")).await.unwrap();
    assert_eq!((one.items.len(), one.items[0].name_any()), (1, "web-2".to_owned()));
    assert_eq!(code(pods.list(&ListParams::default().labels("-x")).await).0, 400);
    let first = pods.list(&ListParams::default().limit(4)).await.unwrap();
    stage.pod("web-9");
    let token = first.metadata.continue_.clone().unwrap();
    let second = pods.list(&ListParams::default().limit(4).continue_token(&token)).await.unwrap();
    assert_eq!(
        (first.metadata.remaining_item_count, names(second.items)),
        (Some(3), "web-4 web-5 web-6".into())
    );
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_implemented_is_named() {
    let stage = Stage::new();
    let server = &stage.server;
    let client = server.client("two");
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let apply = Patch::Apply(json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease" }));
    let answer = leases.patch("a", &PatchParams::apply("x"), &apply).await;
    assert_eq!(code(answer), (501, "NotImplemented".into()));
    let named = server.take_unsupported();
    assert!(named.len() == 1 && named[0].contains("two: PATCH /apis/coordination"), "{named:?}");
    assert!(server.store().objects(Kind::Lease).is_empty());
}
