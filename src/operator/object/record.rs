//! One version of a group's object, with the names that are derived from it, shared by everything that works on it.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::GroupName;
use crate::{
    api::{
        ConditionType, Declaration, FINALIZER, LeaderGroup, LeaderGroupStatus, Reason, RoutingSpec,
        SWITCHOVER_ANNOTATION, SWITCHOVER_TO_ANNOTATION, SwitchoverStatus,
    },
    election::SwitchoverRequest,
    routing::{GroupRef, Marks},
};
use leadergroup_lock::Key;

/// So many characters of the annotation name a request. It is written into the status.
const LONGEST_REQUEST: usize = 64;

/// One version of a group's object. Effects and status writes that are under way share it; a newer version is a new
/// record.
#[derive(Debug)]
pub(in crate::operator) struct Record {
    pub(in crate::operator) name: GroupName,
    pub(in crate::operator) uid: Arc<str>,
    /// The group as the API server's calls need it.
    pub(in crate::operator) reference: GroupRef,
    /// The key of the lock's row.
    pub(in crate::operator) key: Key,
    /// How the lock's row names the group: cluster, namespace, name and UID.
    pub(in crate::operator) tag: String,
    pub(in crate::operator) object: LeaderGroup,
    /// What the status says of the last request for a switchover, in this version or the last one that said so.
    answered: Option<SwitchoverStatus>,
}

impl Record {
    /// The record of a group that was not seen before; `None` for an object without name, namespace or UID, which no
    /// API server sends, and for one whose lock key cannot be used.
    pub(in crate::operator) fn first(object: LeaderGroup, name: GroupName, cluster: &str) -> Option<Self> {
        let reference = GroupRef::of(&object)?;
        let default_key = Key::new(format!("{cluster}/{}/{}", reference.namespace, reference.name));
        let key = match object.spec.lock.key.clone().map(Key::new) {
            // It never had a row, so its deletion does not have to wait for one.
            Some(Err(_)) if object.metadata.deletion_timestamp.is_some() => default_key,
            key => key.unwrap_or(default_key),
        };
        Some(Self {
            uid: reference.uid.as_str().into(),
            tag: tag(cluster, &reference.namespace, &reference.name, &reference.uid),
            key: key.ok()?,
            name,
            reference,
            answered: answered(&object),
            object,
        })
    }

    /// The record of a newer version of the same object. Its key is immutable.
    pub(in crate::operator) fn newer(&self, object: LeaderGroup) -> Self {
        Self {
            name: self.name.clone(),
            uid: self.uid.clone(),
            reference: GroupRef::of(&object).unwrap_or_else(|| self.reference.clone()),
            key: self.key.clone(),
            tag: self.tag.clone(),
            answered: answered(&object).or_else(|| self.answered.clone()),
            object,
        }
    }

    pub(in crate::operator) fn status(&self) -> Option<&LeaderGroupStatus> {
        self.object.status.as_ref()
    }

    /// The declaration in the status.
    pub(in crate::operator) fn declared(&self) -> Declaration {
        self.status().map(|status| status.declaration.clone()).unwrap_or_default()
    }

    /// The switchover that its annotations request, unless the status says what became of it, or did so before. The
    /// declaration names the last request that was carried out, too, but somebody may have removed it, or all of the
    /// status.
    pub(in crate::operator) fn requested_switchover(&self) -> Option<SwitchoverRequest> {
        let annotation = |name| self.object.annotations().get(name).filter(|value| !value.is_empty());
        let id: String = annotation(SWITCHOVER_ANNOTATION)?.chars().take(LONGEST_REQUEST).collect();
        let to = annotation(SWITCHOVER_TO_ANNOTATION).cloned();
        let answered = self.answered.as_ref().is_some_and(|last| last.request == id);
        (!answered).then_some(SwitchoverRequest { id, to })
    }

    /// What the status says of the last request for a switchover, or said before somebody removed it.
    pub(in crate::operator) fn answered_switchover(&self) -> Option<&SwitchoverStatus> {
        self.answered.as_ref()
    }

    /// What the status says of the group's Services, if one of them does not route to the active pod.
    pub(in crate::operator) fn service_problem(&self) -> Option<(Reason, &str)> {
        let is_routed = |condition: &&Condition| condition.type_ == ConditionType::Routed.name();
        let routed = self.status()?.conditions.iter().find(is_routed)?;
        let reasons = [Reason::ServiceUnusable, Reason::ServiceMisrouted];
        let reason = reasons.into_iter().find(|reason| reason.to_string() == routed.reason)?;
        (routed.status == "False").then_some((reason, routed.message.as_str()))
    }

    /// Whether the operator's finalizer is on it.
    pub(in crate::operator) fn has_finalizer(&self) -> bool {
        self.object.finalizers().iter().any(|name| name == FINALIZER)
    }

    pub(in crate::operator) fn is_deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }
}

/// What the status of this object says of the last request for a switchover.
fn answered(object: &LeaderGroup) -> Option<SwitchoverStatus> {
    object.status.as_ref()?.switchover.clone()
}

/// How a lock's row names a group.
fn tag(cluster: &str, namespace: &str, name: &str, uid: &str) -> String {
    format!("{cluster}/{namespace}/{name}/{uid}")
}

/// The group that a row's tag names; `None` if the tag is of another cluster.
pub(in crate::operator) fn tagged(tag: &str, cluster: &str) -> Option<GroupRef> {
    let mut parts = tag.strip_prefix(cluster)?.strip_prefix('/')?.split('/');
    let mut part = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
    let (namespace, name, uid) = (part()?, part()?, part()?);
    parts.next().is_none().then_some(GroupRef {
        namespace,
        name,
        uid,
        marks: Marks::from(&RoutingSpec::default()),
    })
}

/// Whether two tags have the same cluster, namespace and name: if the younger of two such groups exists, the older one
/// is certainly gone.
pub(in crate::operator) fn same_place(one: &str, other: &str) -> bool {
    let place = |tag: &str| tag.rsplit_once('/').map(|(place, _)| place.to_owned());
    place(one).is_some() && place(one) == place(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SwitchoverResult;

    /// The declaration names the request that it carries out, and somebody may remove it.
    #[test]
    fn a_request_that_the_status_answers_is_not_carried_out_again() {
        for result in [SwitchoverResult::Done, SwitchoverResult::Refused] {
            let object: LeaderGroup = serde_json::from_value(serde_json::json!({
                "metadata": { "namespace": "shop", "name": "web", "uid": "u1",
                              "annotations": { SWITCHOVER_ANNOTATION: "one" } },
                "spec": { "selector": {} },
            }))
            .expect("a group");
            let answer = |request: &str| SwitchoverStatus {
                request: request.to_owned(),
                result,
                message: String::new(),
            };
            let name = GroupName { namespace: "shop".into(), name: "web".into() };
            let requested = |request| {
                let status = LeaderGroupStatus { switchover: Some(answer(request)), ..Default::default() };
                let object = LeaderGroup { status: Some(status), ..object.clone() };
                Record::first(object, name.clone(), "c1").expect("a record").requested_switchover()
            };
            assert!(requested("one").is_none(), "{result:?}");
            assert!(requested("an earlier one").is_some_and(|request| request.id == "one"));
        }
    }

    /// Only the status says that a request was refused, and somebody may remove all of it.
    #[test]
    fn a_request_that_was_answered_is_not_carried_out_when_somebody_removes_the_status() {
        let object = |request: &str, answered: Option<&str>| -> LeaderGroup {
            let switchover = answered.map(|request| SwitchoverStatus {
                request: request.to_owned(),
                result: SwitchoverResult::Refused,
                message: String::new(),
            });
            let object: LeaderGroup = serde_json::from_value(serde_json::json!({
                "metadata": { "namespace": "shop", "name": "web", "uid": "u1",
                              "annotations": { SWITCHOVER_ANNOTATION: request } },
                "spec": { "selector": {} },
            }))
            .expect("a group");
            let status =
                switchover.map(|it| LeaderGroupStatus { switchover: Some(it), ..Default::default() });
            LeaderGroup { status, ..object }
        };
        let name = GroupName { namespace: "shop".into(), name: "web".into() };
        let asked = Record::first(object("one", None), name, "c1").expect("a record");
        assert!(asked.requested_switchover().is_some());
        let refused = asked.newer(object("one", Some("one")));
        assert!(refused.requested_switchover().is_none());
        let removed = refused.newer(object("one", None)).newer(object("one", None));
        assert!(removed.requested_switchover().is_none(), "it was answered");
        let known = removed.answered_switchover().map(|last| &last.request);
        assert_eq!(known.map(String::as_str), Some("one"), "it is reported again");
        let next = removed.newer(object("two", None)).requested_switchover();
        assert!(next.is_some_and(|request| request.id == "two"), "another one was not");
    }

    #[test]
    fn a_tag_of_this_cluster_names_its_group_and_no_other_does() {
        let group = tagged("c1/shop/web/u1", "c1").expect("it is ours");
        assert_eq!((&*group.namespace, &*group.name, &*group.uid), ("shop", "web", "u1"));
        for other in ["c12/shop/web/u1", "c1/shop/web", "c1/shop/web/", "c1/shop/web/u1/x", "reports", ""] {
            assert!(tagged(other, "c1").is_none(), "{other}");
        }
    }
}
