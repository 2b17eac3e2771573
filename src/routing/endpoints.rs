//! The `EndpointSlices` that the operator writes for the Services of a group with `routing.endpoints: Managed`.
//!
//! A Service that selects the role label changes its endpoint in two updates: the strip takes the old one away, and the
//! promotion adds the new one. kube-proxy applies the first and puts the second off by its `minSyncPeriod`, a second by
//! default. Here one update replaces the old endpoint with the new one.
//!
//! A slice carries the stamp of the term that it was written for, and each write is bound to a version of the slice
//! that was seen. So a write of an earlier term that arrives late is refused. Each Service has one slice for each
//! address family, whose name is derived from the Service's, so that it has at most one endpoint in each family at
//! every revision.

use std::net::IpAddr;

use k8s_openapi::{
    api::{
        core::v1::{Container, ObjectReference, Pod, Service, ServicePort, ServiceSpec},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::{
    Api, Resource as _, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};

use super::{
    GroupRef, Router, RoutingError,
    others::{MANAGED_BY_LABEL, Occupants, OtherSlice, SERVICE_NAME_LABEL, other_slices},
    stamp_of,
};
use crate::api::{FIELD_MANAGER, GROUP_LABEL, PodRef, PodSelector, Role, SLICE_MANAGER, STAMP_ANNOTATION};

/// The label of the slices of a Service without a cluster address.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// The kind of these writes, for the metrics.
const KIND: &str = "endpoints";

/// One slice to create, replace or delete.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceChange {
    /// The Service of the slice.
    pub service: String,
    /// The slice as it was seen, if there is one.
    pub seen: Option<EndpointSlice>,
    /// The slice as it should be, if there should be one.
    pub wanted: Option<EndpointSlice>,
    /// What this was decided on.
    pub basis: Basis,
}

/// What the watches show of a group and a Service. A slice is deleted only if it is still so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The generation of the group.
    pub generation: Option<i64>,
    /// The version of the Service, if there is one of this name that names the group.
    pub service: Option<String>,
}

impl SliceChange {
    /// The name of the slice.
    pub fn name(&self) -> String {
        self.wanted.as_ref().or(self.seen.as_ref()).map(ResourceExt::name_any).unwrap_or_default()
    }

    /// Whether another pod is routed to afterwards.
    pub fn reroutes(&self) -> bool {
        let pod = |slice: &Option<EndpointSlice>| slice.as_ref().and_then(routed_to).map(|pod| pod.uid);
        let wanted = pod(&self.wanted);
        wanted.is_some() && wanted != pod(&self.seen)
    }
}

/// What became of a change of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was made, now or by another replica.
    Done,
    /// What it was decided on is out of date. The watches will show what is true now.
    Outdated,
    /// Slices that others write list endpoints of the Service. A second list would route to two pods.
    Occupied(Occupants),
}

/// The pod that a slice routes to.
pub fn routed_to(slice: &EndpointSlice) -> Option<PodRef> {
    let pod = slice.endpoints.first()?.target_ref.as_ref()?;
    Some(PodRef { name: pod.name.clone()?, uid: pod.uid.clone()? })
}

/// Whether the operator writes this slice.
pub fn is_managed(slice: &EndpointSlice) -> bool {
    slice.labels().get(MANAGED_BY_LABEL).is_some_and(|by| by == SLICE_MANAGER)
}

/// The address families of a Service. It has one slice for each.
pub fn families(service: &Service) -> impl Iterator<Item = &str> {
    service.spec.iter().flat_map(|spec| spec.ip_families.iter().flatten()).map(String::as_str)
}

/// The name of a Service's slice for an address family.
pub fn slice_name(service: &Service, family: &str) -> String {
    format!("{}-leadergroup-{}", service.name_any(), family.to_lowercase())
}

/// The slice of a Service, for an address family, that routes to this pod, or to none.
pub fn slice(
    service: &Service,
    family: &str,
    group: &GroupRef,
    token: i64,
    pod: Option<&Pod>,
) -> EndpointSlice {
    let default = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&default);
    let name = service.name_any();
    // As Kubernetes' own controller does, with all labels of the Service.
    let mut labels = service.labels().clone();
    labels.insert(SERVICE_NAME_LABEL.to_owned(), name.clone());
    labels.insert(MANAGED_BY_LABEL.to_owned(), SLICE_MANAGER.to_owned());
    labels.insert(GROUP_LABEL.to_owned(), group.name.clone());
    if spec.cluster_ip.as_deref() == Some("None") {
        labels.insert(HEADLESS_LABEL.to_owned(), String::new());
    } else {
        labels.remove(HEADLESS_LABEL);
    }
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: name.clone(),
        uid: service.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let routed = pod.and_then(|pod| Some((pod, endpoint(&name, spec, pod, address(pod, family)?))));
    let ports = routed.as_ref().map(|(pod, _)| spec.ports.iter().flatten().filter_map(|it| port(it, pod)));
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(slice_name(service, family)),
            namespace: service.namespace(),
            labels: Some(labels),
            annotations: Some([(STAMP_ANNOTATION.to_owned(), group.stamp(token).to_string())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        ports: Some(ports.into_iter().flatten().collect()),
        endpoints: routed.into_iter().map(|(_, endpoint)| endpoint).collect(),
    }
}

/// The pod's address of a family, unless the pod has ended.
fn address<'a>(pod: &'a Pod, family: &str) -> Option<&'a str> {
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return None;
    }
    let of_family = |text: &&str| match text.parse() {
        Ok(IpAddr::V4(_)) => family == "IPv4",
        Ok(IpAddr::V6(_)) => family == "IPv6",
        Err(_) => false,
    };
    status.pod_ips.iter().flatten().map(|it| it.ip.as_str()).find(of_family)
}

/// The endpoint, with its conditions as Kubernetes' own controller sets them.
fn endpoint(service: &str, spec: &ServiceSpec, pod: &Pod, address: &str) -> Endpoint {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let serving = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let ready = spec.publish_not_ready_addresses == Some(true) || (serving && !terminating);
    let (node, hostname) = match &pod.spec {
        Some(found) if found.subdomain.as_deref() == Some(service) => {
            (found.node_name.clone(), found.hostname.clone())
        }
        found => (found.as_ref().and_then(|found| found.node_name.clone()), None),
    };
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname,
        node_name: node,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.namespace(),
            name: pod.metadata.name.clone(),
            uid: pod.uid(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

/// The port of the pod behind a port of the Service; `None` if the pod has no port of that name.
fn port(port: &ServicePort, pod: &Pod) -> Option<EndpointPort> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let number = match &port.target_port {
        None | Some(IntOrString::Int(0)) => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => named_port(pod, name, protocol)?,
    };
    Some(EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(number),
        protocol: Some(protocol.to_owned()),
        app_protocol: port.app_protocol.clone(),
    })
}

fn named_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(is_sidecar));
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| {
        port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol
    });
    found.map(|port| port.container_port)
}

/// Whether a slice is as it should be. What the API server adds to it does not count.
pub fn is_as_wanted(seen: &EndpointSlice, wanted: &EndpointSlice) -> bool {
    let owner = |slice: &EndpointSlice| slice.owner_references().first().map(|owner| owner.uid.clone());
    let ports = |slice: &EndpointSlice| slice.ports.clone().unwrap_or_default();
    seen.labels() == wanted.labels()
        && stamp_of(seen) == stamp_of(wanted)
        && owner(seen) == owner(wanted)
        && seen.endpoints == wanted.endpoints
        && ports(seen) == ports(wanted)
}

impl Router {
    fn slices(&self, group: &GroupRef) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), &group.namespace)
    }

    /// Makes one change of a slice. It is bound to the version that was seen. If that is out of date, the slice is
    /// read and checked for anything that forbids the change.
    pub async fn publish(
        &self,
        group: &GroupRef,
        selector: &PodSelector,
        change: &SliceChange,
    ) -> Result<Published, RoutingError> {
        let api = self.slices(group);
        let Some(wanted) = &change.wanted else {
            let Some(seen) = &change.seen else { return Ok(Published::Done) };
            if self.basis(group, &change.service).await?.as_ref() != Some(&change.basis) {
                return Ok(Published::Outdated);
            }
            return self.delete(&api, seen).await;
        };
        if let Some(removed) =
            change.seen.as_ref().and_then(routed_to).filter(|_| wanted.endpoints.is_empty())
            && !self.has_lost_its_role(group, selector, &removed, &wanted.address_type).await?
        {
            return Ok(Published::Outdated);
        }
        let mut known = change.seen.clone();
        for _ in 0..2 {
            let found = if let Some(seen) = known.take() {
                seen
            } else {
                match self.create(group, &change.service, wanted).await? {
                    Created::Slice(found) if is_as_wanted(&found, wanted) => return Ok(Published::Done),
                    Created::Slice(found) => *found,
                    Created::Occupied(others) => return Ok(Published::Occupied(others)),
                    Created::Gone => return Ok(Published::Outdated),
                }
            };
            if !self.may_replace(group, change.seen.as_ref(), &found, wanted).await? {
                return Ok(Published::Outdated);
            }
            if self.replace(&api, &found, wanted).await? {
                return Ok(Published::Done);
            }
            // Another version. It is read as one that exists already.
        }
        Ok(Published::Outdated)
    }

    /// Whether a pod that is to be taken out of a slice is gone, has ended, has no address of this family, has left the
    /// group, or is no longer labelled active: by a quorum read, because a watch may be late.
    async fn has_lost_its_role(
        &self,
        group: &GroupRef,
        selector: &PodSelector,
        pod: &PodRef,
        family: &str,
    ) -> Result<bool, RoutingError> {
        let Some(found) = self.pod(group, pod).await? else { return Ok(true) };
        let is_active = group.marks.role(&found) == Role::Active && selector.matches(found.labels());
        Ok(!is_active || address(&found, family).is_none())
    }

    /// The present basis of a decision about the slices of a Service, by quorum reads; `None` if the group is gone.
    async fn basis(&self, group: &GroupRef, service: &str) -> Result<Option<Basis>, RoutingError> {
        let Some(found) = self.sight(group).await? else { return Ok(None) };
        let api: Api<Service> = Api::namespaced(self.client.clone(), &group.namespace);
        let params = ListParams::default()
            .labels(&format!("{GROUP_LABEL}={}", group.name))
            .fields(&format!("metadata.name={service}"));
        let services =
            self.call("look for the Service of an EndpointSlice", api.list_metadata(&params)).await?;
        let service = services.items.first().and_then(ResourceExt::resource_version);
        Ok(Some(Basis { generation: found.meta().generation, service }))
    }

    /// Creates a slice without endpoints, so that a request that arrives late adds none. If there is one of its name,
    /// reads it: another replica created it, or somebody took away the label by which it is watched.
    async fn create(
        &self,
        group: &GroupRef,
        service: &str,
        wanted: &EndpointSlice,
    ) -> Result<Created, RoutingError> {
        let (api, name) = (self.slices(group), wanted.name_any());
        if let Some(found) = self.get("read an EndpointSlice", &api, &name).await? {
            return Ok(Created::Slice(Box::new(found)));
        }
        let others = self.others(&group.namespace, service).await?;
        if !others.is_empty() {
            return Ok(Created::Occupied(others));
        }
        let empty = EndpointSlice { endpoints: Vec::new(), ..wanted.clone() };
        match self.send(KIND, "create an EndpointSlice", api.create(&as_writer(), &empty)).await {
            Ok(created) => Ok(Created::Slice(Box::new(created))),
            // It was created just now, or its namespace is being deleted.
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(Created::Gone),
            Err(error) => Err(error),
        }
    }

    /// Whether a slice may be replaced. A version that the decision was not based on, a stamp of a later term and one
    /// of another group need a quorum read of the group: it must still exist, and no later term may be declared.
    async fn may_replace(
        &self,
        group: &GroupRef,
        seen: Option<&EndpointSlice>,
        found: &EndpointSlice,
        wanted: &EndpointSlice,
    ) -> Result<bool, RoutingError> {
        let token = stamp_of(wanted).map_or(0, |stamp| stamp.token);
        let is_known = seen.is_some_and(|seen| seen.resource_version() == found.resource_version());
        let is_ours = stamp_of(found).is_some_and(|stamp| stamp.group == group.uid && stamp.token <= token);
        if is_known && is_ours {
            return Ok(true);
        }
        // Another group has taken the slice over since it was seen.
        let is_foreign = |slice| stamp_of(slice).is_some_and(|stamp| stamp.group != group.uid);
        if seen.is_some_and(|seen| !is_foreign(seen)) && is_foreign(found) {
            return Ok(false);
        }
        let Some(object) = self.group(group).await? else { return Ok(false) };
        let declared = object.status.map_or(0, |status| status.declaration.token);
        Ok(object.metadata.deletion_timestamp.is_none() && declared <= token)
    }

    /// Replaces a slice, if it still has this version.
    async fn replace(
        &self,
        api: &Api<EndpointSlice>,
        found: &EndpointSlice,
        wanted: &EndpointSlice,
    ) -> Result<bool, RoutingError> {
        // For the API server an empty or zero version means "unconditional", which must never happen here.
        let version = found.resource_version().filter(|version| !version.is_empty() && version != "0");
        let Some(version) = version else { return Ok(false) };
        let mut wanted = wanted.clone();
        wanted.metadata.resource_version = Some(version);
        let (name, params) = (wanted.name_any(), as_writer());
        match self.send(KIND, "write an EndpointSlice", api.replace(&name, &params, &wanted)).await {
            Ok(_) => Ok(true),
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a slice, if it still has this version.
    async fn delete(
        &self,
        api: &Api<EndpointSlice>,
        seen: &impl ResourceExt,
    ) -> Result<Published, RoutingError> {
        let preconditions = Preconditions { resource_version: seen.resource_version(), uid: seen.uid() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = seen.name_any();
        match self.send(KIND, "delete an EndpointSlice", api.delete(&name, &params)).await {
            Ok(_) => Ok(Published::Done),
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(Published::Outdated),
            Err(error) => Err(error),
        }
    }

    /// The other slices of a Service that list endpoints. Kubernetes leaves them behind when a Service loses its
    /// selector, and empties them when the selector matches no pod any more.
    async fn others(&self, namespace: &str, service: &str) -> Result<Occupants, RoutingError> {
        let api: Api<OtherSlice> = Api::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().labels(&other_slices(Some(service)));
        let found = self.call("list the EndpointSlices of a Service", api.list(&params)).await?;
        let mut others = Occupants::default();
        for slice in found.items.iter().filter(|slice| slice.serves().is_some()) {
            others.add(slice.name_any(), slice.is_copy());
        }
        Ok(others)
    }

    /// Deletes the slices that the operator wrote for a group, but not those that it wrote for a later group of the
    /// same name.
    pub async fn withdraw(&self, group: &GroupRef) -> Result<(), RoutingError> {
        let this = self.in_background();
        let (api, what) = (this.slices(group), "list the EndpointSlices of a LeaderGroup");
        let params = ListParams::default()
            .labels(&format!("{GROUP_LABEL}={},{MANAGED_BY_LABEL}={SLICE_MANAGER}", group.name));
        for _ in 0..3 {
            let found = this.call(what, api.list_metadata(&params)).await?;
            let is_ours = |slice: &&_| stamp_of(*slice).is_none_or(|stamp| stamp.group == group.uid);
            let mut all = true;
            for slice in found.items.iter().filter(is_ours) {
                all &= this.delete(&api, slice).await? == Published::Done;
            }
            if all {
                return Ok(());
            }
        }
        Err(RoutingError::Contended { what: "delete the EndpointSlices of a LeaderGroup" })
    }
}

/// The slice to write to.
enum Created {
    Slice(Box<EndpointSlice>),
    /// Others of the Service list endpoints.
    Occupied(Occupants),
    /// There is none, or it is not known which.
    Gone,
}

fn as_writer() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{api::RoutingSpec, routing::Marks};

    fn group() -> GroupRef {
        let marks = Marks::from(&RoutingSpec::default());
        GroupRef { namespace: "shop".into(), name: "web".into(), uid: "g1".into(), marks }
    }

    fn service(spec: &Value) -> Service {
        let metadata = json!({ "name": "front", "namespace": "shop", "uid": "s1",
            "labels": { "leadergroup.dev/group": "web", "team": "shop" } });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a Service")
    }

    /// A pod with other values at these places of its JSON.
    fn pod(changes: &[(&str, Value)]) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "web-0", "namespace": "shop", "uid": "p0", "deletionTimestamp": null },
            "spec": {
                "nodeName": "n1", "hostname": "web-0", "subdomain": "front",
                "containers": [{ "name": "main", "ports": [{ "name": "http", "containerPort": 8080 }] }],
                "initContainers": [
                    { "name": "once", "ports": [{ "name": "metrics", "containerPort": 1 }] },
                    { "name": "mesh", "restartPolicy": "Always", "ports": [{ "name": "metrics", "containerPort": 9090 }] }
                ]
            },
            "status": {
                "phase": "Running",
                "podIPs": [{ "ip": "198.18.0.7" }, { "ip": "fd00::7" }],
                "conditions": [{ "type": "Ready", "status": "True" }]
            }
        });
        for (place, value) in changes {
            *pod.pointer_mut(place).expect("the place is there") = value.clone();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    fn first(spec: &Value, pod: Option<&Pod>) -> EndpointSlice {
        let service = service(spec);
        let family = families(&service).next().expect("it has a family");
        slice(&service, family, &group(), 7, pod)
    }

    #[test]
    fn a_slice_lists_the_pod_with_the_ports_that_the_service_leads_to() {
        let ports = json!([
            { "name": "web", "port": 80, "targetPort": "http", "appProtocol": "h2c" },
            { "name": "plain", "port": 81 },
            { "name": "number", "port": 82, "targetPort": 8082, "protocol": "UDP" },
            { "name": "sidecar", "port": 83, "targetPort": "metrics" },
            { "name": "unknown", "port": 84, "targetPort": "none" }
        ]);
        let spec = json!({ "clusterIP": "198.19.0.9", "ipFamilies": ["IPv4", "IPv6"], "ports": ports });
        let (service, pod) = (service(&spec), pod(&[]));
        let both = families(&service).map(|family| slice(&service, family, &group(), 7, Some(&pod)));
        let both: Vec<_> = both.collect();
        let names: Vec<_> = both.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["front-leadergroup-ipv4", "front-leadergroup-ipv6"]);
        let addresses: Vec<_> = both.iter().map(|slice| slice.endpoints[0].addresses.clone()).collect();
        assert_eq!(addresses, [["198.18.0.7"], ["fd00::7"]]);
        let found = serde_json::to_value(&both[0]).expect("it is JSON");
        assert_eq!(found["metadata"]["labels"]["kubernetes.io/service-name"], "front");
        assert_eq!(found["metadata"]["labels"]["team"], "shop");
        assert_eq!(found["metadata"]["annotations"]["leadergroup.dev/stamp"], "g1/7");
        assert_eq!(found["metadata"]["ownerReferences"][0]["uid"], "s1");
        assert_eq!(
            found["ports"],
            json!([
                { "name": "web", "port": 8080, "protocol": "TCP", "appProtocol": "h2c" },
                { "name": "plain", "port": 81, "protocol": "TCP" },
                { "name": "number", "port": 8082, "protocol": "UDP" },
                { "name": "sidecar", "port": 9090, "protocol": "TCP" }
            ])
        );
        assert_eq!(found["endpoints"][0]["targetRef"]["uid"], "p0");
        assert_eq!(
            (&found["endpoints"][0]["hostname"], &found["endpoints"][0]["nodeName"]),
            (&json!("web-0"), &json!("n1"))
        );
        assert!(
            is_managed(&both[0]) && is_as_wanted(&both[0], &both[0]) && !is_as_wanted(&both[0], &both[1])
        );
    }

    #[test]
    fn the_conditions_are_those_that_kubernetes_sets() {
        let plain = json!({ "ipFamilies": ["IPv4"], "ports": [{ "port": 80 }] });
        let all =
            json!({ "ipFamilies": ["IPv4"], "ports": [{ "port": 80 }], "publishNotReadyAddresses": true });
        let unready = [("/status/conditions/0/status", json!("False"))];
        let leaving = [("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))];
        let conditions = |spec: &Value, changes: &[(&str, Value)]| {
            let found =
                first(spec, Some(&pod(changes))).endpoints.remove(0).conditions.expect("they are set");
            [found.ready, found.serving, found.terminating].map(|it| it.expect("it is set"))
        };
        assert_eq!(conditions(&plain, &[]), [true, true, false]);
        assert_eq!(conditions(&plain, &unready), [false, false, false]);
        assert_eq!(conditions(&plain, &leaving), [false, true, true]);
        assert_eq!(conditions(&all, &unready), [true, false, false]);
        assert_eq!(conditions(&all, &leaving), [true, true, true]);
    }

    #[test]
    fn a_slice_is_empty_without_a_pod_that_runs_and_has_an_address_of_its_family() {
        let spec =
            |family: &str| json!({ "clusterIP": "None", "ipFamilies": [family], "ports": [{ "port": 80 }] });
        let ended = pod(&[("/status/phase", json!("Failed"))]);
        let one_family = pod(&[("/status/podIPs", json!([{ "ip": "198.18.0.7" }]))]);
        for (family, pod) in [("IPv4", None), ("IPv4", Some(&ended)), ("IPv6", Some(&one_family))] {
            let slice = first(&spec(family), pod);
            assert_eq!((slice.endpoints.len(), slice.ports.as_ref().map(Vec::len)), (0, Some(0)));
            assert_eq!(slice.labels()["service.kubernetes.io/headless"], "");
        }
    }
}
