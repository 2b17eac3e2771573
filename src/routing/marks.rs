//! Roles on pods: reading them, and the patches that write them.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::{LeaderGroup, PodRef, Role, RoutingSpec, STAMP_ANNOTATION, Stamp};

/// The role label and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The label's key.
    pub label: String,
    /// Its value on the active pod.
    pub active: String,
    /// Its value on all other pods.
    pub standby: String,
}

impl From<&RoutingSpec> for Marks {
    fn from(spec: &RoutingSpec) -> Self {
        Self {
            label: spec.role_label.clone(),
            active: spec.active_value.clone(),
            standby: spec.standby_value.clone(),
        }
    }
}

impl Marks {
    /// The role that the pod's label gives it.
    pub fn role(&self, pod: &Pod) -> Role {
        match pod.labels().get(&self.label) {
            Some(value) if *value == self.active => Role::Active,
            Some(value) if *value == self.standby => Role::Standby,
            _ => Role::None,
        }
    }

    fn value(&self, role: Role) -> Option<&str> {
        match role {
            Role::Active => Some(&self.active),
            Role::Standby => Some(&self.standby),
            Role::None => None,
        }
    }
}

/// The parts of a group that writes need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRef {
    /// Its namespace, and that of its pods.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID. A later group of the same name has another UID.
    pub uid: String,
    /// Its role label and values.
    pub marks: Marks,
}

impl GroupRef {
    /// The reference to this object; none for an object that does not come from an API server.
    pub fn of(group: &LeaderGroup) -> Option<Self> {
        Some(Self {
            namespace: group.namespace()?,
            name: group.metadata.name.clone()?,
            uid: group.uid()?,
            marks: Marks::from(&group.spec.routing),
        })
    }

    /// The stamp of a term of this group.
    pub fn stamp(&self, token: i64) -> Stamp {
        Stamp { group: self.uid.clone(), token }
    }

    /// A merge patch that sets the role and the term's stamp of the pod, on condition of its UID and resourceVersion.
    pub(super) fn patch(&self, pod: &PodRef, version: &str, role: Role, stamp: Option<i64>) -> Value {
        json!({
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": version,
                "labels": { &self.marks.label: self.marks.value(role) },
                "annotations": { STAMP_ANNOTATION: stamp.map(|token| self.stamp(token).to_string()) },
            }
        })
    }
}

/// The stamp on a pod, if it carries a readable one.
pub fn stamp_of(pod: &Pod) -> Option<Stamp> {
    pod.annotations().get(STAMP_ANNOTATION)?.parse().ok()
}
