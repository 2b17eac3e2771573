//! Writes of `EndpointSlices`, and those of earlier terms that arrive late.

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use leadergroup::{
    api::{PodRef, STAMP_ANNOTATION},
    routing::{Published, SliceChange, slices},
};
use serde_json::{Value, json};

use crate::stage::Stage;

/// A group with one Service.
struct Routed {
    stage: Stage,
    service: Service,
}

impl Routed {
    async fn new(name: &str) -> Self {
        let stage = Stage::new(name).await;
        let service = json!({ "metadata": { "name": "front" }, "spec": { "ports": [{ "port": 80 }] } });
        let services: Api<Service> = Api::namespaced(stage.client.clone(), &stage.namespace);
        let service = serde_json::from_value(service).unwrap();
        let service = services.create(&PostParams::default(), &service).await.unwrap();
        Self { stage, service }
    }

    fn api(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.stage.client.clone(), &self.stage.namespace)
    }

    async fn pod(&self, name: &str, address: &str) -> PodRef {
        let pod = self.stage.pod(name).await;
        let status = Patch::Merge(json!({ "status": { "podIP": address, "podIPs": [{ "ip": address }] } }));
        self.stage.pods().patch_status(name, &PatchParams::default(), &status).await.unwrap();
        pod
    }

    /// What this replica would write for this term.
    async fn change(&self, seen: Option<&EndpointSlice>, token: i64, pod: &PodRef) -> SliceChange {
        let pod = self.stage.read(pod).await;
        let wanted = slices(&self.service, &self.stage.group, token, Some(&pod)).remove(0);
        SliceChange { service: "front".into(), selects: false, seen: seen.cloned(), wanted: Some(wanted) }
    }

    async fn publish(&self, change: &SliceChange) -> Published {
        self.stage.router.publish(&self.stage.group, change).await.unwrap()
    }

    async fn read(&self) -> EndpointSlice {
        self.api().get("front-leadergroup-ipv4").await.unwrap()
    }

    /// The pod that is routed to, and the stamp.
    async fn routed(&self) -> (String, String) {
        let slice = self.read().await;
        assert_eq!(slice.endpoints.len(), 1);
        let pod = slice.endpoints[0].target_ref.as_ref().unwrap().name.clone().unwrap();
        (pod, slice.annotations()[STAMP_ANNOTATION].clone())
    }

    fn stamped(&self, pod: &str, token: i64) -> (String, String) {
        (pod.to_owned(), self.stage.group.stamp(token).to_string())
    }

    async fn edit(&self, metadata: Value) {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.api().patch("front-leadergroup-ipv4", &PatchParams::default(), &patch).await.unwrap();
    }
}

#[tokio::test]
async fn a_write_of_an_earlier_term_that_arrives_late_is_refused() {
    let routed = Routed::new("late-endpoints").await;
    let (one, two) = (routed.pod("orders-0", "198.18.0.1").await, routed.pod("orders-1", "198.18.0.2").await);
    routed.stage.declare(1, &one).await;
    assert_eq!(routed.publish(&routed.change(None, 1, &one).await).await, Published::Done);
    let seen = routed.read().await;
    // The first replica is about to write for its term again, and is stopped.
    let late = routed.change(Some(&seen), 1, &one).await;
    let late_first = routed.change(None, 1, &one).await;
    routed.stage.declare(2, &two).await;
    assert_eq!(routed.publish(&routed.change(Some(&seen), 2, &two).await).await, Published::Done);
    assert_eq!(routed.publish(&late).await, Published::Outdated);
    assert_eq!(routed.publish(&late_first).await, Published::Outdated, "the slice is there");
    let now = routed.read().await;
    let informed = routed.change(Some(&now), 1, &one).await;
    assert_eq!(routed.publish(&informed).await, Published::Outdated, "a later term is declared");
    assert_eq!(routed.routed().await, routed.stamped("orders-1", 2));
    let unbound = EndpointSlice::default();
    assert_eq!(routed.publish(&routed.change(Some(&unbound), 3, &one).await).await, Published::Outdated);
}

#[tokio::test]
async fn what_others_wrote_is_put_right() {
    let routed = Routed::new("edited-endpoints").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    routed.stage.declare(1, &one).await;
    routed.publish(&routed.change(None, 1, &one).await).await;
    // A stamp that no term has.
    routed
        .edit(json!({ "annotations": { STAMP_ANNOTATION: routed.stage.group.stamp(99).to_string() } }))
        .await;
    let seen = routed.read().await;
    assert_eq!(routed.publish(&routed.change(Some(&seen), 1, &one).await).await, Published::Done);
    assert_eq!(routed.routed().await, routed.stamped("orders-0", 1));
    // Without its labels the watch does not show it.
    routed.edit(json!({ "labels": { "leadergroup.dev/group": null } })).await;
    assert_eq!(routed.publish(&routed.change(None, 1, &one).await).await, Published::Done);
    assert_eq!(routed.read().await.labels()["leadergroup.dev/group"], "orders");
    routed.stage.router.withdraw(&routed.stage.group).await.unwrap();
    assert!(routed.api().get_opt("front-leadergroup-ipv4").await.unwrap().is_none());
    let gone = SliceChange { wanted: None, ..routed.change(Some(&seen), 1, &one).await };
    assert_eq!(routed.publish(&gone).await, Published::Outdated);
}

#[tokio::test]
async fn no_second_endpoint_is_added_to_those_that_somebody_else_lists() {
    let routed = Routed::new("occupied-endpoints").await;
    let (one, two) = (routed.pod("orders-0", "198.18.0.1").await, routed.pod("orders-1", "198.18.0.2").await);
    let left = |pod: &PodRef| {
        let slice = json!({
            "metadata": { "name": format!("front-{}", pod.name), "labels": { "kubernetes.io/service-name": "front" } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": ["198.18.0.1"],
                "targetRef": { "kind": "Pod", "name": pod.name, "uid": pod.uid } }],
        });
        serde_json::from_value::<EndpointSlice>(slice).unwrap()
    };
    routed.api().create(&PostParams::default(), &left(&one)).await.unwrap();
    let change = routed.change(None, 1, &one).await;
    let occupied = |name: &str| Published::Occupied(vec![name.to_owned()]);
    assert_eq!(routed.publish(&change).await, occupied("front-orders-0"), "nobody would keep it up");
    // Kubernetes is about to empty it, because the Service's selector matches no pod.
    let selecting = SliceChange { selects: true, ..change.clone() };
    let other = SliceChange { selects: true, ..routed.change(None, 1, &two).await };
    assert_eq!(routed.publish(&other).await, occupied("front-orders-0"));
    assert_eq!(routed.publish(&selecting).await, Published::Done);
    assert_eq!(routed.routed().await.0, "orders-0");
}
