//! Roles on pods: reading them, and the patches that write them.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::{
    ACTIVE_DELETION_COST, DELETION_COST_ANNOTATION, FENCING_ANNOTATION, FencingToken, LeaderGroup, PodRef,
    Role, RoutingSpec, STAMP_ANNOTATION, Stamp,
};

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
}

/// What one write makes of a pod's marks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Marking<'a> {
    /// Labelled active, stamped, with the fencing token of the lock with this key, and with the highest deletion cost.
    Active { token: i64, key: &'a str },
    /// Labelled standby and stamped.
    Standby { token: i64 },
    /// Without any mark.
    Bare,
    /// Without a stamp, but with the role and the fencing token that it has.
    Unstamped,
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

    /// A merge patch that sets all marks of the pod, on condition of its UID and resourceVersion. In one write, so that
    /// no revision of the pod has the fencing token without the active label, and the former active pod does not keep
    /// its deletion cost beside the new one. Only a dry run has no version.
    pub(super) fn patch(&self, pod: &PodRef, version: Option<&str>, marking: Marking<'_>) -> Value {
        let Marks { label, active, standby } = &self.marks;
        let stamp = |token| self.stamp(token).to_string();
        let inactive = |stamp: Option<String>| json!({ STAMP_ANNOTATION: stamp, FENCING_ANNOTATION: null, DELETION_COST_ANNOTATION: null });
        let (labels, annotations) = match marking {
            Marking::Active { token, key } => {
                let annotations = json!({
                    STAMP_ANNOTATION: stamp(token),
                    FENCING_ANNOTATION: FencingToken { key, token }.to_string(),
                    DELETION_COST_ANNOTATION: ACTIVE_DELETION_COST.to_string(),
                });
                (json!({ label: active }), annotations)
            }
            Marking::Standby { token } => (json!({ label: standby }), inactive(Some(stamp(token)))),
            Marking::Bare => (json!({ label: null }), inactive(None)),
            Marking::Unstamped => (json!({}), json!({ STAMP_ANNOTATION: null })),
        };
        let mut metadata = json!({ "uid": pod.uid, "labels": labels, "annotations": annotations });
        if let Some(version) = version {
            metadata["resourceVersion"] = version.into();
        }
        json!({ "metadata": metadata })
    }
}

/// Whether the pod has the fencing token that its role calls for: that of its stamp if it is active, otherwise none.
pub fn has_its_fencing_token(pod: &Pod, role: Role, key: &str) -> bool {
    let found = pod.annotations().get(FENCING_ANNOTATION);
    if role != Role::Active {
        return found.is_none();
    }
    let token = stamp_of(pod).map(|stamp| stamp.token);
    let found = found.and_then(|text| FencingToken::parse(text));
    found.is_some_and(|found| found.key == key && Some(found.token) == token)
}

/// The stamp on a pod, if it carries a readable one.
pub fn stamp_of(pod: &impl ResourceExt) -> Option<Stamp> {
    pod.annotations().get(STAMP_ANNOTATION)?.parse().ok()
}
