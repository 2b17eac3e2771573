//! Owners of pods, such as a `ReplicaSet`, whose pod template carries the role label. Each of their new pods comes with
//! a role that nobody gave it. If such an owner also selects by the label, it loses every pod whose role changes and
//! creates another one in its place, without end. Nobody is promoted in such a group.
//!
//! An owner can only select by a label that its template sets. So a new pod that already carries the role label is the
//! sign to read its owner.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::ResourceExt as _;

use crate::{
    operator::trouble::Trouble,
    routing::{Marks, RoleLabelUse, stamp_of},
};

/// What is known about the owner of a new pod that had the role label from the start.
#[derive(Debug)]
enum Suspicion {
    /// It is being read for the first time.
    Asking,
    /// How it uses the label; none if it does not, or could not be read.
    Read(Option<RoleLabelUse>),
}

/// The suspected owners of a group's pods.
#[derive(Debug, Default)]
pub(in crate::operator) struct Owners {
    suspicions: BTreeMap<String, Suspicion>,
    of: BTreeMap<Arc<str>, String>,
}

impl Owners {
    /// Looks at a pod. Returns its owner if the owner has to be read.
    pub(in crate::operator) fn pod_seen(&mut self, pod: &Pod, marks: &Marks) -> Option<OwnerReference> {
        let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
        let uid: Arc<str> = pod.uid()?.into();
        let is_new = stamp_of(pod).is_none() && !self.of.contains_key(&uid);
        let has_label = pod.labels().contains_key(&marks.label);
        let ask = match self.suspicions.get(&owner.uid) {
            None if is_new && has_label => {
                self.suspicions.insert(owner.uid.clone(), Suspicion::Asking);
                true
            }
            None => return None,
            Some(Suspicion::Asking) => false,
            // The template may have changed; a selector cannot.
            Some(Suspicion::Read(found)) => is_new && has_label != found.is_some(),
        };
        self.of.insert(uid, owner.uid.clone());
        ask.then(|| owner.clone())
    }

    pub(in crate::operator) fn pod_gone(&mut self, uid: &str) {
        let Some(owner) = self.of.remove(uid) else { return };
        if !self.of.values().any(|other| *other == owner) {
            self.suspicions.remove(&owner);
        }
    }

    /// An owner was read.
    pub(in crate::operator) fn answered(
        &mut self,
        owner: &OwnerReference,
        found: Result<Option<RoleLabelUse>, Trouble>,
    ) {
        if let Some(suspicion) = self.suspicions.get_mut(&owner.uid) {
            *suspicion = Suspicion::Read(found.unwrap_or_default());
        }
    }

    /// Whether some owner has not been read yet.
    pub(in crate::operator) fn asking(&self) -> bool {
        self.suspicions.values().any(|suspicion| matches!(suspicion, Suspicion::Asking))
    }

    /// An owner that uses the role label, if there is one, one that selects by it.
    pub(in crate::operator) fn role_label_use(&self) -> Option<&RoleLabelUse> {
        let found = self.suspicions.values().filter_map(|suspicion| match suspicion {
            Suspicion::Read(found) => found.as_ref(),
            Suspicion::Asking => None,
        });
        found.min_by_key(|found| (!found.selects, &found.workload))
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

    fn uses(selects: bool) -> RoleLabelUse {
        RoleLabelUse { workload: "Deployment web".into(), selects }
    }

    #[test]
    fn an_owner_is_read_once_when_a_new_pod_comes_with_the_label_and_forgotten_with_its_last_pod() {
        let mut owners = Owners::default();
        assert!(owners.pod_seen(&pod("plain", None, None), &marks()).is_none());
        assert!(owners.pod_seen(&pod("ours", Some("standby"), Some("group/1")), &marks()).is_none());
        assert!(!owners.asking());
        let owner = owners.pod_seen(&pod("born", Some("standby"), None), &marks()).expect("a suspect");
        assert!(owners.asking() && owners.role_label_use().is_none());
        assert!(owners.pod_seen(&pod("second", Some("standby"), None), &marks()).is_none());
        owners.answered(&owner, Ok(Some(uses(true))));
        assert_eq!((owners.asking(), owners.role_label_use()), (false, Some(&uses(true))));
        assert!(owners.pod_seen(&pod("third", Some("standby"), None), &marks()).is_none());
        owners.pod_gone("born");
        owners.pod_gone("third");
        assert!(owners.role_label_use().is_some());
        owners.pod_gone("second");
        assert!(owners.role_label_use().is_none());
    }

    #[test]
    fn an_owner_that_does_without_the_label_or_cannot_be_read_is_not_reported() {
        for answer in [Ok(None), Err(Trouble::Refused("no".into()))] {
            let mut owners = Owners::default();
            let owner = owners.pod_seen(&pod("born", Some("standby"), None), &marks()).expect("a suspect");
            owners.answered(&owner, answer);
            assert!(!owners.asking() && owners.role_label_use().is_none());
        }
    }

    #[test]
    fn an_owner_is_read_again_when_a_new_pod_shows_that_its_template_has_changed() {
        let mut owners = Owners::default();
        let owner = owners.pod_seen(&pod("born", Some("active"), None), &marks()).expect("a suspect");
        owners.answered(&owner, Ok(Some(uses(false))));
        assert!(owners.pod_seen(&pod("born", Some("standby"), Some("group/1")), &marks()).is_none());
        // Somebody took the label off a pod that is known.
        assert!(owners.pod_seen(&pod("born", None, None), &marks()).is_none());
        let owner = owners.pod_seen(&pod("plain", None, None), &marks()).expect("another template");
        assert!(!owners.asking(), "nothing waits for the answer");
        assert!(owners.pod_seen(&pod("plain", None, None), &marks()).is_none());
        owners.answered(&owner, Ok(None));
        assert!(owners.role_label_use().is_none());
        assert!(owners.pod_seen(&pod("third", Some("active"), None), &marks()).is_some());
    }
}
