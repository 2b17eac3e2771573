//! What a slice of endpoints should be: pure, from a Service, a group, its term and a pod.

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
use kube::ResourceExt;

use super::{
    GroupRef,
    others::{MANAGED_BY_LABEL, SERVICE_NAME_LABEL},
    stamp_of,
};
use crate::api::{GROUP_LABEL, PodRef, SLICE_MANAGER, STAMP_ANNOTATION};

/// The label of the slices of a Service without a cluster address.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

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
pub(super) fn address<'a>(pod: &'a Pod, family: &str) -> Option<&'a str> {
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
