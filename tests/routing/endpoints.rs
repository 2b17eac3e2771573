//! Writes of `EndpointSlices`, and those of earlier terms that arrive late.

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use leadergroup::{
    api::{GROUP_LABEL, LeaderGroup, PodRef, STAMP_ANNOTATION},
    routing::{Basis, Occupants, Published, SliceChange, slice},
};
use serde_json::{Value, json};

use crate::stage::{KEY, Stage};

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
        let wanted = slice(&self.service, "IPv4", &self.stage.group, token, Some(&pod));
        SliceChange {
            service: "front".into(),
            seen: seen.cloned(),
            wanted: Some(wanted),
            basis: Basis::default(),
        }
    }

    /// The deletion of the slice, decided on what is there now.
    async fn removal(&self) -> SliceChange {
        let group = self.stage.router.group(&self.stage.group).await.unwrap().unwrap();
        let service = self.services().get("front").await.unwrap();
        let names_it = service.labels().get(GROUP_LABEL) == Some(&self.stage.group.name);
        let basis = Basis {
            generation: group.metadata.generation,
            service: service.resource_version().filter(|_| names_it),
        };
        SliceChange { service: "front".into(), seen: Some(self.read().await), wanted: None, basis }
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.stage.client.clone(), &self.stage.namespace)
    }

    /// Lets the Service name a group.
    async fn name_group(&self, group: Option<&str>) {
        let labels = Patch::Merge(json!({ "metadata": { "labels": { GROUP_LABEL: group } } }));
        self.services().patch("front", &PatchParams::default(), &labels).await.unwrap();
    }

    async fn publish(&self, change: &SliceChange) -> Published {
        let selector = serde_json::from_value(json!({ "matchLabels": { "app": "orders" } })).unwrap();
        self.stage.router.publish(&self.stage.group, &selector, change).await.unwrap()
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
    for late in [late, late_first.clone(), routed.change(Some(&routed.read().await), 1, &one).await] {
        assert_eq!(routed.publish(&late).await, Published::Outdated);
        assert_eq!(routed.routed().await, routed.stamped("orders-1", 2));
    }
    let unbound = EndpointSlice::default();
    assert_eq!(routed.publish(&routed.change(Some(&unbound), 1, &one).await).await, Published::Outdated);
    // Nothing shows that the later term is over.
    routed.stage.undeclare().await;
    assert_eq!(routed.publish(&late_first).await, Published::Outdated);
    assert_eq!(routed.routed().await, routed.stamped("orders-1", 2));
    routed.stage.declare(2, &two).await;
    // Somebody deletes the slice. The late write brings one back, but no endpoint.
    let delete = async || {
        routed.api().delete("front-leadergroup-ipv4", &DeleteParams::default()).await.unwrap();
    };
    delete().await;
    assert_eq!(routed.publish(&late_first).await, Published::Outdated);
    assert_eq!(routed.read().await.endpoints, []);
    // The same for a group that was deleted, and for one that was created again.
    delete().await;
    let later = routed.stage.replace_group().await;
    assert_eq!(routed.publish(&late_first).await, Published::Outdated);
    assert_eq!(routed.read().await.endpoints, []);
    let mut wanted = slice(&routed.service, "IPv4", &later, 1, Some(&routed.stage.read(&two).await));
    wanted.metadata.resource_version = routed.read().await.resource_version();
    routed.api().replace("front-leadergroup-ipv4", &PostParams::default(), &wanted).await.unwrap();
    assert_eq!(routed.publish(&late_first).await, Published::Outdated);
    assert_eq!(routed.routed().await.0, "orders-1");
    // Nor does it delete that one.
    routed.stage.router.withdraw(&routed.stage.group).await.unwrap();
    assert_eq!(routed.routed().await.0, "orders-1");
}

#[tokio::test]
async fn what_others_wrote_is_put_right() {
    let routed = Routed::new("edited-endpoints").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    routed.stage.declare(1, &one).await;
    routed.publish(&routed.change(None, 1, &one).await).await;
    let first = routed.read().await;
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
    // A watch that is late keeps nothing from being written, and nothing is written in vain.
    let late = routed.change(Some(&first), 1, &one).await;
    let version = routed.read().await.resource_version();
    assert_eq!(routed.publish(&late).await, Published::Done);
    assert_eq!(routed.read().await.resource_version(), version);
    routed
        .edit(json!({ "annotations": { STAMP_ANNOTATION: routed.stage.group.stamp(0).to_string() } }))
        .await;
    assert_eq!(routed.publish(&late).await, Published::Done);
    assert_eq!(routed.routed().await, routed.stamped("orders-0", 1));
    // A late deletion.
    let late = SliceChange { seen: Some(first), ..routed.removal().await };
    assert_eq!(routed.publish(&late).await, Published::Outdated);
    routed.read().await;
    routed.stage.router.withdraw(&routed.stage.group).await.unwrap();
    assert!(routed.api().get_opt("front-leadergroup-ipv4").await.unwrap().is_none());
    assert_eq!(routed.publish(&late).await, Published::Outdated);
}

#[tokio::test]
async fn a_slice_is_not_deleted_because_a_watch_is_late() {
    let routed = Routed::new("late-watches").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    routed.stage.declare(1, &one).await;
    routed.publish(&routed.change(None, 1, &one).await).await;
    let group = routed.stage.group.name.clone();
    // The Service does not name the group yet, then it selects pods, then the group manages no endpoints.
    let unnamed = routed.removal().await;
    routed.name_group(Some(&group)).await;
    let selecting = routed.removal().await;
    let patch = |change: Value| Patch::Merge(change);
    let unselected = patch(json!({ "spec": { "selector": { "leadergroup.dev/role": "managed" } } }));
    routed.services().patch("front", &PatchParams::default(), &unselected).await.unwrap();
    let by_selector = routed.removal().await;
    let groups: Api<LeaderGroup> = Api::namespaced(routed.stage.client.clone(), &routed.stage.namespace);
    let managed = patch(json!({ "spec": { "routing": { "endpoints": "Managed" } } }));
    groups.patch(&group, &PatchParams::default(), &managed).await.unwrap();
    for late in [unnamed, selecting, by_selector] {
        assert_eq!(routed.publish(&late).await, Published::Outdated, "{late:?}");
        assert_eq!(routed.routed().await, routed.stamped("orders-0", 1));
    }
    for other in [Some(&*group), Some("another"), None] {
        routed.name_group(other).await;
        assert_eq!(routed.publish(&routed.removal().await).await, Published::Done);
        routed.publish(&routed.change(None, 1, &one).await).await;
    }
}

#[tokio::test]
async fn an_active_pod_is_not_taken_out_because_a_watch_does_not_show_it() {
    let routed = Routed::new("kept-endpoints").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    routed.stage.declare(1, &one).await;
    let version = routed.stage.version(&one).await;
    routed.stage.router.promote(&routed.stage.group, KEY, 1, &one, &version).await.unwrap();
    routed.publish(&routed.change(None, 1, &one).await).await;
    let empty = async || {
        let wanted = slice(&routed.service, "IPv4", &routed.stage.group, 1, None);
        let seen = Some(routed.read().await);
        let change =
            SliceChange { service: "front".into(), seen, wanted: Some(wanted), basis: Basis::default() };
        routed.publish(&change).await
    };
    assert_eq!(empty().await, Published::Outdated);
    assert_eq!(routed.routed().await.0, "orders-0");
    let strip = routed.stage.seen(std::slice::from_ref(&one)).await;
    routed.stage.router.strip(&routed.stage.group, 2, &strip).await.unwrap();
    assert_eq!(empty().await, Published::Done);
    assert_eq!(routed.read().await.endpoints, []);
}

#[tokio::test]
async fn no_second_endpoint_is_added_to_those_that_somebody_else_lists() {
    let routed = Routed::new("occupied-endpoints").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    let left = |endpoints: Value| {
        let labels = json!({ "kubernetes.io/service-name": "front" });
        let slice = json!({
            "metadata": { "name": "front-abc", "labels": labels }, "addressType": "IPv4", "endpoints": endpoints
        });
        serde_json::from_value::<EndpointSlice>(slice).unwrap()
    };
    let target = json!({ "kind": "Pod", "name": one.name, "uid": one.uid });
    let leftover = left(json!([{ "addresses": ["198.18.0.1"], "targetRef": target }]));
    routed.api().create(&PostParams::default(), &leftover).await.unwrap();
    let change = routed.change(None, 1, &one).await;
    let occupants = Occupants { slices: vec!["front-abc".to_owned()], ..Occupants::default() };
    assert_eq!(routed.publish(&change).await, Published::Occupied(occupants));
    assert!(routed.api().get_opt("front-leadergroup-ipv4").await.unwrap().is_none());
    // Kubernetes empties it when the Service's selector matches no pod.
    let patch = Patch::Merge(json!({ "endpoints": [] }));
    routed.api().patch("front-abc", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(routed.publish(&change).await, Published::Done);
    assert_eq!(routed.routed().await.0, "orders-0");
}

#[tokio::test]
async fn a_late_write_for_a_group_that_is_being_deleted_adds_no_endpoint() {
    let routed = Routed::new("leaving-endpoints").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    routed.stage.declare(1, &one).await;
    let late = routed.change(None, 1, &one).await;
    // Its finalizer keeps it.
    let groups: Api<LeaderGroup> = Api::namespaced(routed.stage.client.clone(), &routed.stage.namespace);
    groups.delete(&routed.stage.group.name, &DeleteParams::default()).await.unwrap();
    let group = groups.get(&routed.stage.group.name).await.unwrap();
    assert!(group.metadata.deletion_timestamp.is_some());
    assert_eq!(routed.publish(&late).await, Published::Outdated);
    assert_eq!(routed.read().await.endpoints, []);
}

#[tokio::test]
async fn a_pod_that_left_the_group_with_its_label_is_taken_out() {
    let routed = Routed::new("left-endpoints").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    routed.stage.declare(1, &one).await;
    let version = routed.stage.version(&one).await;
    routed.stage.router.promote(&routed.stage.group, KEY, 1, &one, &version).await.unwrap();
    routed.publish(&routed.change(None, 1, &one).await).await;
    let empty = async || {
        let wanted = slice(&routed.service, "IPv4", &routed.stage.group, 1, None);
        let seen = Some(routed.read().await);
        let change =
            SliceChange { service: "front".into(), seen, wanted: Some(wanted), basis: Basis::default() };
        routed.publish(&change).await
    };
    assert_eq!(empty().await, Published::Outdated);
    routed.stage.edit(&one, json!({ "labels": { "app": "elsewhere" } })).await;
    assert_eq!(empty().await, Published::Done);
    assert_eq!(routed.read().await.endpoints, []);
}

#[tokio::test]
async fn copies_of_endpoints_are_told_from_other_slices() {
    let routed = Routed::new("copied-endpoints").await;
    let one = routed.pod("orders-0", "198.18.0.1").await;
    for (name, by) in [("front-copy", "endpointslicemirroring-controller.k8s.io"), ("front-own", "somebody")]
    {
        let slice = json!({
            "metadata": { "name": name, "labels": {
                "kubernetes.io/service-name": "front", "endpointslice.kubernetes.io/managed-by": by,
            } },
            "addressType": "IPv4", "endpoints": [{ "addresses": ["198.18.0.9"] }],
        });
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        routed.api().create(&PostParams::default(), &slice).await.unwrap();
    }
    let occupants = Occupants { copies: vec!["front-copy".to_owned()], slices: vec!["front-own".to_owned()] };
    assert_eq!(routed.publish(&routed.change(None, 1, &one).await).await, Published::Occupied(occupants));
}
