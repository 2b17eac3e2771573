//! The operator's router against the simulated server.

use std::time::Duration;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, ResourceExt as _};
use leadergroup::{
    api::{Declaration, DeletionPolicy, PodAt, PodRef, Role},
    routing::{
        Basis, Declared, GroupRef, Promoted, Published, Reported, Router, SliceChange, Stripped, Trial,
        slice, stamp_of,
    },
};
use serde_json::json;

use super::stage::{NAMESPACE, Stage};
use crate::api_server::{Hook, Kind, Verdict};

const KEY: &str = "c1/shop/orders";
const LIMIT: Duration = Duration::from_secs(5);

fn term(token: i64, holder: &PodRef) -> Declaration {
    let grant = Some(format!("00000000-0000-4000-8000-{token:012}"));
    Declaration { token, grant, holder: Some(holder.clone()), ..Declaration::default() }
}

async fn at(router: &Router, group: &GroupRef, pod: &PodRef) -> PodAt {
    let found = router.pod(group, pod).await.unwrap().unwrap();
    PodAt { pod: pod.clone(), version: found.resource_version() }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_holder_from_the_declaration_to_the_deletion_of_the_group() {
    let stage = Stage::new();
    let router = Router::new(stage.client.clone(), LIMIT);
    let (group, first, second) = (stage.group(), stage.pod("web-0"), stage.pod("web-1"));
    let declared = async |previous: &Declaration, next: &Declaration| {
        router.declare(&group, previous, next).await.unwrap()
    };
    assert_eq!(declared(&Declaration::default(), &term(1, &first)).await, Declared::Done);
    assert_eq!(declared(&Declaration::default(), &term(2, &second)).await, Declared::Outdated);
    assert!(matches!(router.try_change(&group, KEY, 1, &first, None).await.unwrap(), Trial::Accepted));
    let version = at(&router, &group, &first).await.version.unwrap();
    let promoted = router.promote(&group, KEY, 1, &first, &version).await.unwrap();
    let Promoted::Done(pod) = promoted else { panic!("{promoted:?}") };
    assert_eq!((group.marks.role(&pod), stamp_of(&*pod).unwrap().token), (Role::Active, 1));
    assert!(matches!(router.promote(&group, KEY, 1, &first, &version).await.unwrap(), Promoted::Conflict));
    assert_eq!(declared(&term(1, &first), &term(2, &second)).await, Declared::Done);
    let seen = at(&router, &group, &first).await;
    assert!(matches!(router.strip(&group, 2, &[seen]).await.unwrap(), Stripped::Done(_, true)));
    let other = PodRef { uid: "00000000-0000-4000-8000-000000000000".into(), ..second.clone() };
    assert!(matches!(router.try_change(&group, KEY, 2, &other, None).await.unwrap(), Trial::Gone));
    router.clear(&group, DeletionPolicy::RemoveLabels, &[]).await.unwrap();
    let pod = router.pod(&group, &first).await.unwrap().unwrap();
    assert_eq!((group.marks.role(&pod), stamp_of(&pod)), (Role::None, None));
    let options = crate::api_server::DeleteOptions::default();
    stage.server.store().delete(Kind::LeaderGroup, NAMESPACE, "orders", &options).unwrap();
    assert!(router.group(&group).await.unwrap().is_some(), "the finalizer keeps it");
    router.set_finalizer(&group, false).await.unwrap();
    assert!(router.group(&group).await.unwrap().is_none());
    assert!(matches!(declared(&term(2, &second), &term(3, &first)).await, Declared::GroupGone));
}

#[tokio::test(start_paused = true)]
async fn a_report_is_bound_to_the_version_and_leaves_the_declaration() {
    let stage = Stage::new();
    let router = Router::new(stage.client.clone(), LIMIT);
    let (group, pod) = (stage.group(), stage.pod("web-0"));
    router.declare(&group, &Declaration::default(), &term(1, &pod)).await.unwrap();
    let seen = router.group(&group).await.unwrap().unwrap().resource_version().unwrap();
    let status = json!({ "eligibleSummary": "1/1", "replicas": 1, "active": null });
    let reported = router.report(&group, &status, Some(&seen)).await.unwrap();
    assert!(matches!(reported, Reported::Done(_)), "{reported:?}");
    let late = router.report(&group, &json!({ "eligibleSummary": "0/1" }), Some(&seen)).await.unwrap();
    assert!(matches!(late, Reported::Outdated(Some(_))), "{late:?}");
    let status = router.group(&group).await.unwrap().unwrap().status.unwrap();
    assert_eq!((status.eligible_summary.as_str(), status.declaration), ("1/1", term(1, &pod)));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_webhook_and_by_a_policy() {
    let stage = Stage::new();
    let router = Router::new(stage.client.clone(), LIMIT);
    let (group, pod) = (stage.group(), stage.pod("web-0"));
    let version = at(&router, &group, &pod).await.version.unwrap();
    for (hook, words) in [
        (
            Hook::webhook("a.test", |_| Verdict::Deny(409, "not now".into())),
            "admission webhook \"a.test\" denied the request: not now (HTTP 409)",
        ),
        (
            Hook::webhook("a.test", |_| Verdict::Fail("connection refused".into())),
            "failed calling webhook \"a.test\": failed to call webhook",
        ),
        (Hook::policy("a", |_| Verdict::Deny(422, "no".into())), "denied request: no (HTTP 422)"),
        (Hook::policy("a", |_| Verdict::Deny(403, "no".into())), "denied request: no (HTTP 403)"),
    ] {
        *stage.server.hooks() = vec![hook];
        let trial = router.try_change(&group, KEY, 1, &pod, None).await.unwrap();
        let Trial::Refused(refused) = trial else { panic!("{trial:?}") };
        assert!(refused.to_string().contains(words), "{refused}");
        let promoted = router.promote(&group, KEY, 1, &pod, &version).await.unwrap();
        assert!(matches!(&promoted, Promoted::Refused(refused) if refused.to_string().contains(words)));
    }
    stage.server.hooks().clear();
    assert!(matches!(router.promote(&group, KEY, 1, &pod, &version).await.unwrap(), Promoted::Done(_)));
}

#[tokio::test(start_paused = true)]
async fn a_slice_is_created_replaced_and_deleted() {
    let stage = Stage::new();
    let router = Router::new(stage.client.clone(), LIMIT);
    let (group, pod) = (stage.group(), stage.pod("web-0"));
    let service = json!({
        "metadata": { "name": "front", "labels": { "leadergroup.dev/group": "orders" } },
        "spec": { "ipFamilies": ["IPv4"], "clusterIP": "198.19.0.9", "ports": [{ "port": 80 }] },
    });
    let service = stage.server.store().create(Kind::Service, NAMESPACE, service).unwrap();
    let ready = json!({ "phase": "Running", "podIP": "198.18.0.7", "podIPs": [{ "ip": "198.18.0.7" }] });
    let change = |pod: &mut serde_json::Value| pod["status"] = ready;
    stage.server.store().update(Kind::Pod, NAMESPACE, "web-0", change).unwrap();
    let found = router.pod(&group, &pod).await.unwrap();
    let service = serde_json::from_value(service.value().clone()).unwrap();
    let wanted = slice(&service, "IPv4", &group, 1, found.as_ref());
    let selector = router.group(&group).await.unwrap().unwrap().spec.selector;
    let basis = Basis { generation: Some(1), service: service.resource_version() };
    let change = SliceChange { service: "front".into(), seen: None, wanted: Some(wanted), basis };
    assert_eq!(router.publish(&group, &selector, &change).await.unwrap(), Published::Done);
    let slices: Api<EndpointSlice> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let seen = slices.get("front-leadergroup-ipv4").await.unwrap();
    assert_eq!((seen.metadata.generation, seen.endpoints.len()), (Some(2), 1));
    let removal = SliceChange { seen: Some(seen), wanted: None, ..change.clone() };
    assert_eq!(router.publish(&group, &selector, &removal).await.unwrap(), Published::Done);
    assert_eq!(router.publish(&group, &selector, &change).await.unwrap(), Published::Done);
    router.withdraw(&group).await.unwrap();
    assert!(slices.get_opt("front-leadergroup-ipv4").await.unwrap().is_none());
}

/// A replica whose watch of pods is late sees an active pod, and that the slice does not list it.
#[tokio::test(start_paused = true)]
async fn a_pod_that_has_lost_its_role_is_not_put_back_into_the_slice_of_its_term() {
    for deleted in [false, true] {
        let stage = Stage::new();
        let router = Router::new(stage.client.clone(), LIMIT);
        let (group, pod) = (stage.group(), stage.pod("web-0"));
        let service = json!({
            "metadata": { "name": "front", "labels": { "leadergroup.dev/group": "orders" } },
            "spec": { "ipFamilies": ["IPv4"], "clusterIP": "198.19.0.9", "ports": [{ "port": 80 }] },
        });
        let service = stage.server.store().create(Kind::Service, NAMESPACE, service).unwrap();
        let ready = json!({ "phase": "Running", "podIP": "198.18.0.7", "podIPs": [{ "ip": "198.18.0.7" }] });
        let change = |pod: &mut serde_json::Value| pod["status"] = ready;
        stage.server.store().update(Kind::Pod, NAMESPACE, "web-0", change).unwrap();
        router.declare(&group, &Declaration::default(), &term(1, &pod)).await.unwrap();
        let version = at(&router, &group, &pod).await.version.unwrap();
        router.promote(&group, KEY, 1, &pod, &version).await.unwrap();
        let active = router.pod(&group, &pod).await.unwrap();
        let service: Service = serde_json::from_value(service.value().clone()).unwrap();
        let selector = router.group(&group).await.unwrap().unwrap().spec.selector;
        let basis = Basis { generation: Some(1), service: service.resource_version() };
        let slices: Api<EndpointSlice> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let write = async |pod: Option<&_>| {
            let seen = slices.get_opt("front-leadergroup-ipv4").await.unwrap();
            let wanted = Some(slice(&service, "IPv4", &group, 1, pod));
            let change = SliceChange { service: "front".into(), seen, wanted, basis: basis.clone() };
            router.publish(&group, &selector, &change).await.unwrap()
        };
        assert_eq!(write(active.as_ref()).await, Published::Done);
        let seen = at(&router, &group, &pod).await;
        assert!(matches!(router.strip(&group, 1, &[seen]).await.unwrap(), Stripped::Done(_, true)));
        assert_eq!(write(None).await, Published::Done);
        if deleted {
            let now = crate::api_server::DeleteOptions { grace_seconds: Some(0), ..Default::default() };
            stage.server.store().delete(Kind::Pod, NAMESPACE, "web-0", &now).unwrap();
        }
        assert_eq!(write(active.as_ref()).await, Published::Outdated, "deleted: {deleted}");
        assert_eq!(slices.get("front-leadergroup-ipv4").await.unwrap().endpoints, []);
    }
}

/// Somebody has removed the declaration, and the watch of slices is late: only what the slice lists tells that the
/// decision is out of date.
#[tokio::test(start_paused = true)]
async fn a_pod_that_came_into_a_slice_unseen_is_not_taken_out_instead_of_another() {
    let stage = Stage::new();
    let router = Router::new(stage.client.clone(), LIMIT);
    let (group, one, two) = (stage.group(), stage.pod("web-0"), stage.pod("web-1"));
    let service = json!({
        "metadata": { "name": "front", "labels": { "leadergroup.dev/group": "orders" } },
        "spec": { "ipFamilies": ["IPv4"], "clusterIP": "198.19.0.9", "ports": [{ "port": 80 }] },
    });
    let service = stage.server.store().create(Kind::Service, NAMESPACE, service).unwrap();
    let service: Service = serde_json::from_value(service.value().clone()).unwrap();
    for (name, ip) in [("web-0", "198.18.0.7"), ("web-1", "198.18.0.8")] {
        let ready = json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] });
        let change = |pod: &mut serde_json::Value| pod["status"] = ready;
        stage.server.store().update(Kind::Pod, NAMESPACE, name, change).unwrap();
    }
    let selector = router.group(&group).await.unwrap().unwrap().spec.selector;
    let slices: Api<EndpointSlice> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let read = async || slices.get_opt("front-leadergroup-ipv4").await.unwrap();
    let write = async |seen: Option<EndpointSlice>, token: i64, pod: Option<&PodRef>| {
        let found = match pod {
            Some(pod) => router.pod(&group, pod).await.unwrap(),
            None => None,
        };
        let wanted = Some(slice(&service, "IPv4", &group, token, found.as_ref()));
        let change = SliceChange { service: "front".into(), seen, wanted, basis: Basis::default() };
        router.publish(&group, &selector, &change).await.unwrap()
    };
    assert_eq!(write(None, 1, Some(&one)).await, Published::Done);
    let seen = read().await;
    assert_eq!(write(seen.clone(), 2, Some(&two)).await, Published::Done);
    assert_eq!(write(seen, 1, None).await, Published::Outdated, "the first pod has no role");
    let now = read().await;
    assert_eq!(now.as_ref().unwrap().endpoints.len(), 1);
    assert_eq!(write(now, 2, None).await, Published::Done, "the second one neither");
}
