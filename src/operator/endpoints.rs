//! Which `EndpointSlices` the Services of a group need, and how they differ from those that are there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::future::join_all;
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::ResourceExt as _;

use super::{
    group::Group,
    object::version,
    ownership::Ownership,
    publishing::{EndpointsProblem, EndpointsReport},
    record::Record,
};
use crate::{
    api::{Endpoints, Reason, Role},
    election::Phase,
    routing::{
        Marks, Published, Router, SERVICE_NAME_LABEL, SliceChange, is_as_wanted, is_managed, slices, stamp_of,
    },
};
use leadergroup_lock::SessionId;

/// Where the Services of a group route to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To the pod with this UID, by the term with this token.
    To(Arc<str>, i64),
    /// To no pod: the term with this token has no active pod.
    Nowhere(i64),
    /// To the pod to which they route now, while it exists: a change of holder is under way, or it is not known which
    /// pod is the holder.
    AsBefore,
}

impl Route {
    /// Where this replica is to let the Services route to; `None` if that is for another one to do, or the group is
    /// being deleted.
    ///
    /// Without an owner, each replica keeps the endpoints up with their pods. Which pod is routed to does not change
    /// by that, so it does no harm if several do.
    pub(super) fn of(group: &Group, living: &[SessionId]) -> Option<Self> {
        if group.record().is_deleting() {
            return None;
        }
        match group.ownership() {
            Ownership::Ours => {}
            Ownership::Other(session) if living.contains(&session) => return None,
            Ownership::Foreign(_) => return None,
            _ => return Some(Self::AsBefore),
        }
        let election = group.election();
        let declared = election.declared();
        let holder = declared.holder.as_ref().and_then(|holder| election.member(&holder.uid));
        let active = holder.filter(|member| {
            member.role == Role::Active && member.stamped_by_us && member.stamp == Some(declared.token)
        });
        Some(match (active, election.phase()) {
            (Some(member), _) => Self::To(member.pod.uid.as_str().into(), declared.token),
            (None, Phase::Stable) => Self::Nowhere(declared.token),
            (None, _) => Self::AsBefore,
        })
    }
}

/// What is to be written for a group, and what is to be reported.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<SliceChange>,
    pub(super) report: EndpointsReport,
}

/// The Services of a group and their slices, as they were seen.
pub(super) struct Seen<'a> {
    pub(super) services: Vec<&'a Service>,
    pub(super) slices: Vec<&'a EndpointSlice>,
}

impl Seen<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.slices.is_empty()
    }

    /// Their versions.
    pub(super) fn versions(&self) -> Vec<u64> {
        let services = self.services.iter().map(|service| version(*service));
        services.chain(self.slices.iter().map(|slice| version(*slice))).collect()
    }

    /// What has to be written so that the Services of the group route there.
    pub(super) fn plan(&self, record: &Record, route: &Route, pod: impl Fn(&str) -> Option<Pod>) -> Plan {
        let mut plan = Plan::default();
        let mut kept = BTreeSet::new();
        let managed = record.object.spec.routing.endpoints == Endpoints::Managed;
        for service in self.services.iter().filter(|_| managed) {
            if let Err(problem) = usable(service, &record.reference.marks) {
                plan.report.problem.get_or_insert(EndpointsProblem::new(Reason::ServiceUnusable, problem));
                continue;
            }
            plan.report.services.push(service.name_any());
            let target = |route: &Route, seen: Option<&EndpointSlice>| match route {
                Route::To(uid, token) => Some((*token, pod(uid))),
                Route::Nowhere(token) => Some((*token, None)),
                Route::AsBefore => Some((stamp_of(seen?)?.token, routed(seen?).and_then(|uid| pod(&uid)))),
            };
            for family in slices(service, &record.reference, 0, None) {
                let name = family.name_any();
                let seen = self.slices.iter().find(|slice| slice.name_any() == name).copied();
                kept.insert(name);
                let Some((token, pod)) = target(route, seen) else { continue };
                let wanted = slices(service, &record.reference, token, pod.as_ref())
                    .into_iter()
                    .find(|wanted| wanted.metadata.name == family.metadata.name);
                let Some(wanted) = wanted else { continue };
                let is_settled = match seen {
                    Some(seen) => is_as_wanted(seen, &wanted),
                    None => wanted.endpoints.is_empty(),
                };
                if !is_settled {
                    plan.changes.push(SliceChange {
                        service: service.name_any(),
                        selects: selector(service).is_some(),
                        seen: seen.cloned(),
                        wanted: Some(wanted),
                    });
                }
            }
        }
        let ours = self.slices.iter().filter(|slice| is_managed(slice));
        for slice in ours.filter(|slice| !kept.contains(&slice.name_any())) {
            plan.changes.push(SliceChange {
                service: slice.labels().get(SERVICE_NAME_LABEL).cloned().unwrap_or_default(),
                selects: false,
                seen: Some((*slice).clone()),
                wanted: None,
            });
        }
        if managed && self.services.is_empty() {
            let message = format!(
                "no Service in this namespace has the label leadergroup.dev/group: {}; add it to each Service that is to \
                 route to the active pod",
                record.reference.name
            );
            plan.report.problem = Some(EndpointsProblem::new(Reason::NoService, message));
        }
        plan
    }
}

/// The selector of a Service, if it has one.
fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    service.spec.as_ref()?.selector.as_ref().filter(|selector| !selector.is_empty())
}

/// Whether the operator may write the endpoints of this Service; if not, why, and what to do.
fn usable(service: &Service, marks: &Marks) -> Result<(), String> {
    let name = service.name_any();
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
        return Err(format!("Service {name} is of type ExternalName and has no endpoints; use another type"));
    }
    let Some(selector) = selector(service) else { return Ok(()) };
    // No pod has such a role, and nobody but the operator can give a pod a role.
    let selects_nothing =
        selector.get(&marks.label).is_some_and(|value| *value != marks.active && *value != marks.standby);
    if selects_nothing {
        return Ok(());
    }
    let label = &marks.label;
    Err(format!(
        "Service {name} selects pods, so Kubernetes keeps its endpoints; let its selector contain {label}: managed, which \
         no pod has"
    ))
}

/// The UID of the pod that a slice routes to.
fn routed(slice: &EndpointSlice) -> Option<String> {
    slice.endpoints.first()?.target_ref.as_ref()?.uid.clone()
}

/// Makes the changes, all at the same time. Returns the first problem.
pub(super) async fn publish(
    router: &Router,
    record: &Record,
    changes: &[SliceChange],
) -> Result<(), EndpointsProblem> {
    let outcomes = join_all(changes.iter().map(|change| router.publish(&record.reference, change))).await;
    for (change, outcome) in changes.iter().zip(outcomes) {
        if let Published::Occupied(others) = outcome? {
            let (service, label) = (&change.service, &record.reference.marks.label);
            return Err(EndpointsProblem::new(
                Reason::ServiceUnusable,
                format!(
                    "Service {service} has endpoints that the operator did not write, in the EndpointSlices {}; delete \
                     them (and Endpoints of the Service's name), or give the Service a selector with {label}: managed",
                    others.join(", ")
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::operator::object::GroupName;

    fn record(endpoints: &str) -> Record {
        let object = json!({ "metadata": { "name": "web", "namespace": "shop", "uid": "g1" },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "routing": { "endpoints": endpoints } } });
        let name = GroupName { namespace: "shop".into(), name: "web".into() };
        Record::first(serde_json::from_value(object).expect("a group"), name, "c1").expect("it has a name")
    }

    fn service(name: &str, selector: &Value) -> Service {
        let service = json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name, "resourceVersion": "1",
                "labels": { "leadergroup.dev/group": "web" } },
            "spec": { "ipFamilies": ["IPv4"], "ports": [{ "port": 80 }], "selector": selector }
        });
        serde_json::from_value(service).expect("a Service")
    }

    fn pod(uid: &str) -> Option<Pod> {
        let pod = |uid: &str| {
            json!({ "metadata": { "name": uid, "namespace": "shop", "uid": uid },
                "status": { "podIPs": [{ "ip": format!("198.18.0.{}", &uid[1..]) }],
                    "conditions": [{ "type": "Ready", "status": "True" }] } })
        };
        ["p1", "p2"].contains(&uid).then(|| serde_json::from_value(pod(uid)).expect("a pod"))
    }

    /// The slice of the Service as it would be written, with a version.
    fn slice(service: &Service, token: i64, uid: &str) -> EndpointSlice {
        let mut slice = slices(service, &record("Managed").reference, token, pod(uid).as_ref()).remove(0);
        slice.metadata.resource_version = Some("5".to_owned());
        slice
    }

    /// Name, token and pod of each slice to be written; neither of them for one to be deleted.
    fn plan(
        endpoints: &str,
        services: &[&Service],
        slices: &[&EndpointSlice],
        route: &Route,
    ) -> (Vec<String>, Option<Reason>) {
        let seen = Seen { services: services.to_vec(), slices: slices.to_vec() };
        let plan = seen.plan(&record(endpoints), route, pod);
        let text = |change: &SliceChange| {
            let name = change.seen.iter().chain(&change.wanted).next().expect("a slice").name_any();
            let wanted = change.wanted.as_ref();
            let token = wanted.and_then(stamp_of).map(|stamp| stamp.token);
            format!("{name} {token:?} {:?}", wanted.and_then(routed))
        };
        (plan.changes.iter().map(text).collect(), plan.report.problem.map(|problem| problem.reason))
    }

    fn to(uid: &str, token: i64) -> Route {
        Route::To(uid.into(), token)
    }

    #[test]
    fn the_slice_of_each_service_follows_the_active_pod() {
        let (front, back) = (service("front", &json!(null)), service("back", &json!({})));
        let write = |name: &str, token: i64, pod: &str| {
            format!("{name}-leadergroup-ipv4 Some({token}) Some({pod:?})")
        };
        let first = plan("Managed", &[&front, &back], &[], &to("p1", 7));
        assert_eq!(first, (vec![write("front", 7, "p1"), write("back", 7, "p1")], None));
        let there = slice(&front, 7, "p1");
        assert_eq!(plan("Managed", &[&front], &[&there], &to("p1", 7)), (vec![], None));
        assert_eq!(plan("Managed", &[&front], &[&there], &to("p2", 8)).0, [write("front", 8, "p2")]);
        // The pod keeps its role under a larger token.
        assert_eq!(plan("Managed", &[&front], &[&there], &to("p1", 8)).0, [write("front", 8, "p1")]);
        assert_eq!(
            plan("Managed", &[&front], &[], &Route::Nowhere(7)),
            (vec![], None),
            "there is nothing to empty"
        );
        let emptied = ["front-leadergroup-ipv4 Some(8) None"];
        assert_eq!(plan("Managed", &[&front], &[&there], &Route::Nowhere(8)).0, emptied);
    }

    #[test]
    fn while_a_holder_changes_the_endpoint_stays_as_long_as_its_pod_is_there() {
        let front = service("front", &json!(null));
        assert_eq!(plan("Managed", &[&front], &[], &Route::AsBefore), (vec![], None));
        let mut there = slice(&front, 7, "p1");
        assert_eq!(plan("Managed", &[&front], &[&there], &Route::AsBefore), (vec![], None));
        // The pod is as ready as it was said to be; then it is no longer.
        there.endpoints[0].conditions.as_mut().expect("they are set").ready = Some(false);
        let refreshed = ["front-leadergroup-ipv4 Some(7) Some(\"p1\")"];
        assert_eq!(plan("Managed", &[&front], &[&there], &Route::AsBefore).0, refreshed);
        there.endpoints[0].target_ref.as_mut().expect("it is set").uid = Some("gone".to_owned());
        let emptied = ["front-leadergroup-ipv4 Some(7) None"];
        assert_eq!(plan("Managed", &[&front], &[&there], &Route::AsBefore).0, emptied);
    }

    #[test]
    fn a_service_that_selects_pods_is_left_to_kubernetes() {
        let role = |value: &str| service("front", &json!({ "app": "web", "leadergroup.dev/role": value }));
        let there = slice(&role("managed"), 7, "p1");
        let deleted = vec!["front-leadergroup-ipv4 None None".to_owned()];
        assert_eq!(plan("Managed", &[&role("managed")], &[&there], &to("p1", 7)), (vec![], None));
        for selecting in [role("active"), role("standby"), service("front", &json!({ "app": "web" }))] {
            let (changes, problem) = plan("Managed", &[&selecting], &[&there], &to("p1", 7));
            assert_eq!((changes, problem), (deleted.clone(), Some(Reason::ServiceUnusable)));
        }
        let mut external = service("front", &json!(null));
        external.spec.as_mut().expect("a spec").type_ = Some("ExternalName".to_owned());
        assert_eq!(plan("Managed", &[&external], &[], &to("p1", 7)).1, Some(Reason::ServiceUnusable));
        // The group, or the Service, no longer asks for managed endpoints.
        assert_eq!(plan("Selector", &[&role("managed")], &[&there], &to("p1", 7)), (deleted.clone(), None));
        assert_eq!(plan("Managed", &[], &[&there], &to("p1", 7)), (deleted, Some(Reason::NoService)));
        // Slices of others are not touched.
        let mut foreign = there;
        foreign.metadata.name = Some("front-abc".to_owned());
        let labels = foreign.metadata.labels.as_mut().expect("it has labels");
        labels.insert(
            "endpointslice.kubernetes.io/managed-by".to_owned(),
            "endpointslice-controller.k8s.io".to_owned(),
        );
        assert_eq!(plan("Selector", &[&role("managed")], &[&foreign], &to("p1", 7)), (vec![], None));
    }
}
