//! Names, versions and ages of Kubernetes objects, and what the operator keeps of a pod.

pub(super) mod record;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::ResourceExt;

use crate::api::LeaderGroup;

/// A group's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupName {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

impl GroupName {
    /// The name of this object; `None` if it has no name or no namespace.
    pub(super) fn of(object: &impl ResourceExt) -> Option<Self> {
        Some(Self { namespace: object.namespace()?.into(), name: object.meta().name.as_deref()?.into() })
    }
}

impl std::fmt::Display for GroupName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The resourceVersion of an object as a number. A watch may repeat a version that is older than the one that a write
/// has returned.
pub(super) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

/// Whether one group has precedence over another where both select the same pod: the older one has, and of two groups
/// created in the same second the one with the smaller UID.
pub(super) fn has_precedence(one: &LeaderGroup, other: &LeaderGroup) -> bool {
    let age =
        |group: &LeaderGroup| (group.metadata.creation_timestamp.as_ref().map(|time| time.0), group.uid());
    age(one) < age(other)
}

/// Removes the parts of a pod that the operator never reads, to save memory: a large cluster has many pods.
pub(super) fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(spec) = pod.spec.take() {
        let containers = spec.containers.into_iter().map(|container| Container {
            name: container.name,
            ports: container.ports,
            readiness_probe: container.readiness_probe,
            ..Container::default()
        });
        // The ports of sidecars, for the endpoints of Services.
        let sidecars = spec.init_containers.into_iter().flatten();
        let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
        let sidecars = sidecars.map(|container| Container {
            name: container.name,
            ports: container.ports,
            restart_policy: container.restart_policy,
            ..Container::default()
        });
        let sidecars: Vec<_> = sidecars.filter(|container| container.ports.is_some()).collect();
        pod.spec = Some(PodSpec {
            containers: containers.collect(),
            init_containers: (!sidecars.is_empty()).then_some(sidecars),
            node_name: spec.node_name,
            hostname: spec.hostname,
            subdomain: spec.subdomain,
            ..PodSpec::default()
        });
    }
    if let Some(status) = &mut pod.status {
        status.init_container_statuses = None;
        status.ephemeral_container_statuses = None;
    }
}
