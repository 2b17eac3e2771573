//! Owners of pods, such as a `ReplicaSet`, whose selector contains the role label. Such an owner loses every pod whose role
//! changes and creates another one in its place, without end. Nobody is promoted in such a group.
//!
//! An owner can only select by a label that its template sets. So a new pod that already carries the role label is the
//! sign to read its owner's selector.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::ResourceExt as _;

use super::trouble::Trouble;
use crate::routing::{Marks, stamp_of};

/// What is known of an owner whose new pods carry the role label.
#[derive(Debug)]
enum Suspicion {
    /// Its selector is being read.
    Asking,
    /// Its selector does not contain the label, or could not be read.
    Cleared,
    /// Its selector contains the label.
    Confirmed {
        /// Kind and name.
        owner: String,
    },
}

/// The suspected owners of a group's pods.
#[derive(Debug, Default)]
pub(super) struct OwnerSelectors {
    suspicions: BTreeMap<String, Suspicion>,
    of: BTreeMap<Arc<str>, String>,
}

impl OwnerSelectors {
    /// Looks at a pod. Returns its owner if the owner has to be read.
    pub(super) fn pod_seen(&mut self, pod: &Pod, marks: &Marks) -> Option<OwnerReference> {
        let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
        let uid: Arc<str> = pod.uid()?.into();
        if !self.suspicions.contains_key(&owner.uid) {
            let born_with_role = pod.labels().contains_key(&marks.label) && stamp_of(pod).is_none();
            if !born_with_role {
                return None;
            }
            self.suspicions.insert(owner.uid.clone(), Suspicion::Asking);
            self.of.insert(uid, owner.uid.clone());
            return Some(owner.clone());
        }
        self.of.insert(uid, owner.uid.clone());
        None
    }

    pub(super) fn pod_gone(&mut self, uid: &str) {
        let Some(owner) = self.of.remove(uid) else { return };
        if !self.of.values().any(|other| *other == owner) {
            self.suspicions.remove(&owner);
        }
    }

    /// An owner was read: whether it selects by the role label.
    pub(super) fn answered(&mut self, owner: &OwnerReference, selects: &Result<bool, Trouble>) {
        if let Some(suspicion) = self.suspicions.get_mut(&owner.uid) {
            *suspicion = match selects {
                Ok(true) => Suspicion::Confirmed { owner: format!("{} {}", owner.kind, owner.name) },
                Ok(false) | Err(_) => Suspicion::Cleared,
            };
        }
    }

    /// Whether some owner has not been read yet.
    pub(super) fn asking(&self) -> bool {
        self.suspicions.values().any(|suspicion| matches!(suspicion, Suspicion::Asking))
    }

    /// An owner that selects by the role label.
    pub(super) fn confirmed(&self) -> Option<&str> {
        self.suspicions.values().find_map(|suspicion| match suspicion {
            Suspicion::Confirmed { owner } => Some(owner.as_str()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, role: Option<&str>, stamp: Option<&str>) -> Pod {
        serde_json::from_value(json!({ "metadata": {
            "uid": uid,
            "labels": role.map(|role| json!({ "leadergroup.dev/role": role })),
            "annotations": stamp.map(|stamp| json!({ "leadergroup.dev/stamp": stamp })),
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs", "controller": true
            }],
        } }))
        .expect("a pod")
    }

    fn marks() -> Marks {
        Marks { label: "leadergroup.dev/role".into(), active: "active".into(), standby: "standby".into() }
    }

    #[test]
    fn an_owner_is_read_once_when_a_new_pod_comes_with_the_label_and_forgotten_with_its_last_pod() {
        let mut owners = OwnerSelectors::default();
        assert!(owners.pod_seen(&pod("plain", None, None), &marks()).is_none());
        assert!(owners.pod_seen(&pod("ours", Some("standby"), Some("group/1")), &marks()).is_none());
        assert!(!owners.asking());
        let owner = owners.pod_seen(&pod("born", Some("standby"), None), &marks()).expect("a suspect");
        assert!(owners.asking() && owners.confirmed().is_none());
        assert!(owners.pod_seen(&pod("second", Some("standby"), None), &marks()).is_none());
        owners.answered(&owner, &Ok(true));
        assert_eq!((owners.asking(), owners.confirmed()), (false, Some("ReplicaSet web-1")));
        owners.pod_gone("born");
        assert!(owners.confirmed().is_some());
        owners.pod_gone("second");
        assert!(owners.confirmed().is_none());
    }

    #[test]
    fn an_owner_that_does_without_the_label_or_cannot_be_read_is_no_obstacle() {
        for answer in [Ok(false), Err(Trouble::Refused("no".into()))] {
            let mut owners = OwnerSelectors::default();
            let owner = owners.pod_seen(&pod("born", Some("standby"), None), &marks()).expect("a suspect");
            owners.answered(&owner, &answer);
            assert!(!owners.asking() && owners.confirmed().is_none());
        }
    }
}
