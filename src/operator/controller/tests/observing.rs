//! What is reported of Services whose endpoints Kubernetes writes.

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::Service, discovery::v1::EndpointSlice},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::runtime::watcher;
use serde_json::json;

use super::{objects::pod_ref, *};
use crate::operator::{
    index::{Event, watch_health::Watched},
    status,
};

/// The message if nothing is wrong, whatever the Services are called and whether they can be seen.
const MATCH: &str = "the pods' labels match the declaration";

/// The condition Routed as it would be written.
fn routed(stage: &Stage) -> Condition {
    let conditions = status::status(stage.view(&name(0)), None, false, Timestamp::now()).conditions;
    conditions.into_iter().find(|condition| condition.type_ == "Routed").expect("it is always there")
}

fn says(stage: &Stage, reason: &str, words: &str) -> bool {
    let routed = routed(stage);
    let fits = routed.reason == reason && routed.message.contains(words);
    fits && (routed.status == "True") == (reason == "AsExpected")
}

/// The Service `front` of the first group.
fn service() -> Service {
    let service = json!({
        "metadata": { "namespace": "shop", "name": "front", "labels": { "leadergroup.dev/group": "g0" } },
        "spec": { "selector": { "app": "g0", "leadergroup.dev/role": "active" } },
    });
    serde_json::from_value(service).expect("a Service")
}

/// Its slice, with this pod of the group as the only endpoint.
fn slice(pod: usize) -> EndpointSlice {
    let pod = pod_ref(0, pod);
    let slice = json!({
        "metadata": { "namespace": "shop", "name": "front-abc",
            "labels": { "leadergroup.dev/group": "g0", "kubernetes.io/service-name": "front" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["198.18.0.1"], "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "name": pod.name, "uid": pod.uid } }],
    });
    serde_json::from_value(slice).expect("a slice")
}

/// The watches list these.
fn list(stage: &mut Stage, services: Vec<Service>, slices: Vec<EndpointSlice>) {
    use watcher::Event as E;
    let services = services.into_iter().map(E::InitApply);
    for event in [E::Init].into_iter().chain(services).chain([E::InitDone]) {
        stage.see(Event::Service(None, event));
    }
    let slices = slices.into_iter().map(E::InitApply);
    for event in [E::Init].into_iter().chain(slices).chain([E::InitDone]) {
        stage.see(Event::Slice(None, event));
    }
    stage.turn();
}

/// Both watches of Services fail, for so many seconds.
fn fail(stage: &mut Stage, seconds: u64) {
    for _ in 0..seconds {
        stage.see(Event::WatchFailed(Watched::EndpointSlices, None, "forbidden".to_owned()));
        stage.turn();
        stage.now += s(1);
    }
    stage.see(Event::WatchFailed(Watched::EndpointSlices, None, "forbidden".to_owned()));
    stage.turn();
}

#[test]
fn a_service_that_does_not_route_to_the_active_pod_is_reported_when_that_has_lasted() {
    let mut stage = Stage::new(1, 3);
    list(&mut stage, vec![service()], vec![slice(1)]);
    assert!(says(&stage, "AsExpected", MATCH), "{:?}", routed(&stage));
    stage.report(&name(0));
    stage.now += s(34);
    stage.turn();
    assert!(!stage.view(&name(0)).group.report.writing, "{:?}", routed(&stage));
    stage.now += s(1);
    stage.turn();
    assert!(stage.view(&name(0)).group.report.writing, "without any event");
    let words = "Service front routes to g0-1, and g0-0 is the active pod";
    assert!(says(&stage, "ServiceMisrouted", words), "{:?}", routed(&stage));
    stage.report(&name(0));

    // It stays while nothing can be seen.
    fail(&mut stage, 60);
    assert!(says(&stage, "ServiceMisrouted", words), "{:?}", routed(&stage));
    list(&mut stage, vec![service()], vec![slice(1)]);
    assert!(says(&stage, "ServiceMisrouted", words), "{:?}", routed(&stage));
    assert!(!stage.view(&name(0)).group.report.writing, "nothing has changed");
    list(&mut stage, vec![service()], vec![slice(0)]);
    assert!(says(&stage, "AsExpected", MATCH), "{:?}", routed(&stage));
    // A pod that is being deleted is no endpoint.
    let ends = stage.pod(0, 0, true);
    stage.see(Event::Pod(None, watcher::Event::Apply(ends)));
    list(&mut stage, vec![service()], Vec::new());
    stage.now += s(60);
    stage.turn();
    assert!(!says(&stage, "ServiceMisrouted", ""), "{:?}", routed(&stage));
}

#[test]
fn nothing_is_reported_while_a_watch_fails_and_for_a_moment_after_that() {
    let mut stage = Stage::new(1, 3);
    list(&mut stage, vec![service()], vec![slice(1)]);
    stage.now += s(34);
    fail(&mut stage, 9);
    assert!(says(&stage, "AsExpected", MATCH), "{:?}", routed(&stage));
    list(&mut stage, vec![service()], vec![slice(1)]);
    stage.now += s(4);
    stage.turn();
    assert!(says(&stage, "AsExpected", MATCH), "{:?}", routed(&stage));
    assert!(!stage.view(&name(0)).group.report.writing, "{:?}", routed(&stage));
    stage.now += s(1);
    stage.turn();
    assert!(says(&stage, "ServiceMisrouted", "routes to g0-1"), "{:?}", routed(&stage));
}

#[test]
fn a_replica_that_starts_writes_nothing_because_it_sees_the_services_later() {
    let mut stage = Stage::new(1, 3);
    list(&mut stage, vec![service()], vec![slice(0)]);
    assert!(says(&stage, "AsExpected", MATCH), "{:?}", routed(&stage));
    assert!(!stage.view(&name(0)).group.report.writing, "{:?}", routed(&stage));
    fail(&mut stage, 20);
    list(&mut stage, vec![service()], vec![slice(0)]);
    assert!(!stage.view(&name(0)).group.report.writing, "{:?}", routed(&stage));
}

#[test]
fn a_replica_that_starts_changes_no_report_that_is_still_true() {
    let mut before = Stage::new(1, 3);
    list(&mut before, vec![service()], vec![slice(2)]);
    before.now += s(35);
    before.turn();
    before.report(&name(0));
    let object = before.view(&name(0)).group.record().object.clone();
    let words = "Service front routes to g0-2";

    for (services, slices, reason) in [
        (vec![service()], vec![slice(2)], "ServiceMisrouted"),
        (vec![service()], vec![slice(0)], "AsExpected"),
        // The Service, or its label, is gone.
        (Vec::new(), Vec::new(), "AsExpected"),
    ] {
        let mut stage = Stage::before_lists(1, None, s(600));
        stage.list_groups(vec![object.clone()]);
        stage.adopt_all();
        assert!(says(&stage, "ServiceMisrouted", words), "{:?}", routed(&stage));
        list(&mut stage, services, slices);
        assert!(says(&stage, reason, ""), "{:?}", routed(&stage));
    }
    // Without the right to watch them, what was reported does not stay for ever.
    let mut stage = Stage::before_lists(1, None, s(600));
    stage.list_groups(vec![object]);
    stage.adopt_all();
    fail(&mut stage, 9);
    assert!(says(&stage, "ServiceMisrouted", words), "{:?}", routed(&stage));
    fail(&mut stage, 1);
    assert!(says(&stage, "AsExpected", MATCH), "{:?}", routed(&stage));
}
