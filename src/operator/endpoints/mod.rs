//! Which `EndpointSlices` the Services of a group need, and how they differ from those that are there. Of Services
//! whose slices Kubernetes writes, only what is to be reported.

pub(super) mod observing;
pub(super) mod publishing;

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::ResourceExt as _;

use super::{index::SliceOfOthers, object::record::Record};
use crate::{
    api::{Endpoints, GROUP_LABEL, NO_ROLE, Reason, Role},
    election::{self, Phase},
    ownership::{Owner, Sessions},
    routing::{
        Basis, Marks, Occupants, Published, Router, RoutingError, SERVICE_NAME_LABEL, SliceChange, families,
        is_as_wanted, is_managed, routed_to, selector_of, slice, slice_name, stamp_of, without_endpoints,
    },
};
use publishing::{EndpointsProblem, EndpointsReport};

/// Where the Services of a group route to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To the pod with this UID, by the term with this token.
    To(Arc<str>, i64),
    /// To no pod: the term with this token has no active pod.
    Nowhere(i64),
    /// To the pod to which they route now, while it exists: the owner is changing the holder, or may be.
    AsBefore,
    /// To the pod to which they route now, while it is labelled active: it lost the label too long ago for a change of
    /// holder that makes progress.
    WhileActive,
}

/// Who decides about a group's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    /// This replica.
    This,
    /// Another one.
    Another,
    /// No replica, as far as this one knows.
    None,
}

impl Decider {
    /// For a group with this owner.
    pub(super) fn of(owner: &Owner, sessions: &Sessions) -> Self {
        // Without a session this replica does not know who lives.
        let lives = |session| sessions.own().is_some() && sessions.is_living(session);
        match owner {
            Owner::This => Self::This,
            Owner::Other(session) if lives(*session) => Self::Another,
            // The group has no row of its own.
            Owner::Foreign(_) | Owner::Refused(_) => Self::Another,
            Owner::Other(_) | Owner::Unknown => Self::None,
        }
    }
}

impl Route {
    /// Where this replica lets the Services route to; `None` if that is for another one to do, or the group is being
    /// deleted.
    ///
    /// Any replica may route to a declared holder that has the active label and the stamp of its term: the write fails
    /// if a later term has written the slice. Only the owner can tell that a term has no active pod.
    pub(super) fn of(election: &election::Group, decider: Decider) -> Option<Self> {
        let world = election.world();
        let declared = match decider {
            _ if world.deleting => return None,
            Decider::This => election.declared(),
            Decider::None => &world.declared,
            Decider::Another => return None,
        };
        let holder = declared.holder.as_ref().and_then(|holder| election.member(&holder.uid));
        let labelled = holder.filter(|member| member.role == Role::Active && member.stamped_by_us);
        if let Some(active) = labelled.filter(|member| member.stamp == Some(declared.token)) {
            return Some(Self::To(active.pod.uid.as_str().into(), declared.token));
        }
        Some(match election.phase() {
            // A replica that does not see the owner may have seen its strip, but not yet its promotion.
            _ if decider == Decider::None => Self::AsBefore,
            Phase::Stable if holder.is_none_or(|member| member.role != Role::Active) => {
                Self::Nowhere(declared.token)
            }
            _ => Self::AsBefore,
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
    /// The slices of these Services that others write, and that list endpoints.
    pub(super) others: Vec<&'a SliceOfOthers>,
}

impl Seen<'_> {
    /// Whether a slice that the operator writes lists a pod other than these.
    pub(super) fn lists_other_than(&self, is_one: impl Fn(&str) -> bool) -> bool {
        let managed = self.slices.iter().filter(|slice| is_managed(slice));
        managed.filter_map(|slice| routed_to(slice)).any(|pod| !is_one(&pod.uid))
    }

    /// What has to be written so that the Services of the group route there.
    ///
    /// Only the owner deletes slices: another replica may not know yet that the group asks for them.
    pub(super) fn plan(
        &self,
        record: &Record,
        (route, decider): (&Route, Decider),
        pod: impl Fn(&str) -> Option<Pod>,
    ) -> Plan {
        let (group, mut plan, mut kept) = (&record.reference, Plan::default(), BTreeSet::new());
        let managed = record.object.spec.routing.endpoints == Endpoints::Managed;
        let active = match route {
            Route::To(uid, _) => pod(uid),
            _ => None,
        };
        for service in self.services.iter().filter(|_| managed) {
            if let Err(problem) = usable(service, &group.marks) {
                plan.report.problem.get_or_insert(EndpointsProblem::new(Reason::ServiceUnusable, problem));
                continue;
            }
            plan.report.services.push(service.name_any());
            if let Some(problem) = self.occupied(service) {
                plan.report.problem.get_or_insert(problem);
            }
            for family in families(service) {
                let name = slice_name(service, family);
                let seen = self.slices.iter().find(|slice| slice.name_any() == name).copied();
                kept.insert(name.clone());
                let stamped = seen.and_then(stamp_of).filter(|stamp| stamp.group == group.uid);
                let stamped = stamped.map(|stamp| stamp.token);
                let stays = |keeps: &dyn Fn(&Pod) -> bool| {
                    Some((stamped?, routed_to(seen?).and_then(|it| pod(&it.uid)).filter(|pod| keeps(pod))))
                };
                let target = match route {
                    Route::To(_, token) => Some((*token, active.clone())),
                    // If somebody removed the declaration, the slice knows a later term. A write of that one is late.
                    Route::Nowhere(token) => {
                        Some((stamped.map_or(*token, |stamped| stamped.max(*token)), None))
                    }
                    Route::AsBefore => stays(&|_| true),
                    Route::WhileActive => stays(&|pod| group.marks.role(pod) == Role::Active),
                };
                let Some((token, pod)) = target else { continue };
                let wanted = slice(service, family, group, token, pod.as_ref());
                let is_done = match seen {
                    Some(seen) => is_as_wanted(seen, &wanted),
                    None => wanted.endpoints.is_empty(),
                };
                if !is_done {
                    let (service, seen) = (service.name_any(), seen.cloned());
                    let basis = self.basis(record, &service);
                    plan.changes.push(SliceChange { service, seen, wanted: Some(wanted), basis });
                }
            }
        }
        if decider == Decider::This {
            plan.changes.extend(self.removals(record, &kept));
        }
        if managed && self.services.is_empty() {
            let message = format!(
                "no Service in this namespace has the label {GROUP_LABEL}: {}; add it to each Service that is to route \
                 to the active pod",
                group.name
            );
            plan.report.problem = Some(EndpointsProblem::new(Reason::NoService, message));
        }
        plan
    }

    /// Deletes the operator's other slices than these.
    fn removals(&self, record: &Record, kept: &BTreeSet<String>) -> impl Iterator<Item = SliceChange> {
        let left = self.slices.iter().filter(|slice| is_managed(slice) && !kept.contains(&slice.name_any()));
        left.map(|slice| {
            let service = slice.labels().get(SERVICE_NAME_LABEL).cloned().unwrap_or_default();
            let basis = self.basis(record, &service);
            SliceChange { service, seen: Some((*slice).clone()), wanted: None, basis }
        })
    }

    /// What to report if others add endpoints to this Service.
    fn occupied(&self, service: &Service) -> Option<EndpointsProblem> {
        let mut occupants = Occupants::default();
        for slice in &self.others {
            if slice.service.as_deref() == service.metadata.name.as_deref() {
                occupants.add(slice.name.name.to_string(), slice.is_copy);
            }
        }
        (!occupants.is_empty()).then(|| occupied(&service.name_any(), &occupants))
    }

    fn basis(&self, record: &Record, service: &str) -> Basis {
        let service = self.services.iter().find(|seen| seen.name_any() == service);
        Basis {
            generation: record.object.metadata.generation,
            service: service.and_then(|service| service.resource_version()),
        }
    }
}

/// Whether the operator may write the endpoints of this Service; if not, why, and what to do.
fn usable(service: &Service, marks: &Marks) -> Result<(), String> {
    let name = service.name_any();
    if let Some(problem) = without_endpoints(service) {
        return Err(problem);
    }
    let Some(selector) = selector_of(service) else { return Ok(()) };
    // No pod has this role, and nobody but the operator can give a pod a role.
    if selector.get(&marks.label).is_some_and(|value| value == NO_ROLE) {
        return Ok(());
    }
    Err(format!(
        "Service {name} selects pods, so Kubernetes keeps its endpoints; let its selector contain {}: {NO_ROLE}, which no \
         pod has",
        marks.label
    ))
}

/// What to report of a Service to which others add endpoints.
fn occupied(service: &str, occupants: &Occupants) -> EndpointsProblem {
    let mut remedies = Vec::new();
    if !occupants.slices.is_empty() {
        remedies.push(format!(
            "delete EndpointSlice {}, which Kubernetes left when the selector was removed, or which another program writes",
            occupants.slices.join(", ")
        ));
    }
    if !occupants.copies.is_empty() {
        remedies.push(format!(
            "delete Endpoints {service}, which Kubernetes copies to EndpointSlice {}",
            occupants.copies.join(", ")
        ));
    }
    let message = format!(
        "Service {service} also routes to endpoints that the operator did not write; {}",
        remedies.join("; and ")
    );
    EndpointsProblem::new(Reason::ServiceUnusable, message)
}

/// What to report of a change that failed.
fn failed(change: &SliceChange, error: &RoutingError) -> EndpointsProblem {
    let (seen, wanted) =
        (change.seen.as_ref().and_then(routed_to), change.wanted.as_ref().and_then(routed_to));
    let left = seen.filter(|seen| wanted.as_ref().is_none_or(|wanted| wanted.uid != seen.uid));
    let left = left.map_or_else(String::new, |pod| format!(", which still routes to {}", pod.name));
    let reason = if error.is_refusal() { Reason::WriteRefused } else { Reason::Changing };
    let message = format!("could not write EndpointSlice {}{left}; will retry: {error}", change.name());
    EndpointsProblem::new(reason, message)
}

/// Makes one change.
pub(super) async fn publish(
    router: &Router,
    record: &Record,
    change: &SliceChange,
) -> Result<(), EndpointsProblem> {
    match router.publish(&record.reference, &record.object.spec.selector, change).await {
        Ok(Published::Occupied(occupants)) => Err(occupied(&change.service, &occupants)),
        Ok(Published::Done | Published::Outdated) => Ok(()),
        Err(error) => Err(failed(change, &error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::{
        api::{Declaration, PodRef, Verdict},
        election::{Event, Member, Outcome, Policy, Row, World},
        operator::object::GroupName,
    };
    use leadergroup_lock::{SessionId, controller::Peer};

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
        let mut slice = super::slice(service, "IPv4", &record("Managed").reference, token, pod(uid).as_ref());
        slice.metadata.resource_version = Some("5".to_owned());
        slice
    }

    /// Name, token and pod of each slice to be written; the name of one to be deleted, and the version of the Service
    /// that it must still have.
    fn plan(
        endpoints: &str,
        services: &[&Service],
        slices: &[&EndpointSlice],
        route: &Route,
    ) -> (Vec<String>, Option<Reason>) {
        let seen = Seen { services: services.to_vec(), slices: slices.to_vec(), others: Vec::new() };
        let plan = seen.plan(&record(endpoints), (route, Decider::This), pod);
        let text = |change: &SliceChange| {
            let wanted = change.wanted.as_ref();
            let token = wanted.and_then(stamp_of).map(|stamp| stamp.token);
            let pod = wanted.and_then(routed_to).map(|pod| pod.name);
            if wanted.is_none() {
                return format!("delete {} if the Service is {:?}", change.name(), change.basis.service);
            }
            format!("{} {token:?} {pod:?}", change.name())
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
        // Somebody has removed the declaration.
        let emptied = ["front-leadergroup-ipv4 Some(7) None"];
        assert_eq!(plan("Managed", &[&front], &[&there], &Route::Nowhere(0)).0, emptied);
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
        let deleted = vec!["delete front-leadergroup-ipv4 if the Service is Some(\"1\")".to_owned()];
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
        let gone = vec!["delete front-leadergroup-ipv4 if the Service is None".to_owned()];
        assert_eq!(plan("Managed", &[], &[&there], &to("p1", 7)), (gone, Some(Reason::NoService)));
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

    #[test]
    fn without_an_owner_a_pod_that_is_not_active_is_taken_out_and_nothing_is_deleted() {
        let front = service("front", &json!(null));
        let there = slice(&front, 7, "p1");
        let seen = Seen { services: vec![&front], slices: vec![&there], others: Vec::new() };
        let plan = |role: &str| {
            let pod = |uid: &str| {
                let mut pod = pod(uid)?;
                pod.labels_mut().insert("leadergroup.dev/role".to_owned(), role.to_owned());
                Some(pod)
            };
            seen.plan(&record("Managed"), (&Route::WhileActive, Decider::None), pod).changes
        };
        assert!(plan("active").is_empty());
        let [emptied] = &plan("standby")[..] else { panic!("one slice is to be emptied") };
        assert_eq!(emptied.wanted.as_ref().map(|slice| slice.endpoints.len()), Some(0));
        // This replica may not know yet that the group asks for the slice.
        let unasked = seen.plan(&record("Selector"), (&Route::WhileActive, Decider::None), pod);
        assert!(unasked.changes.is_empty());
    }

    #[test]
    fn the_slice_of_a_former_group_of_this_name_is_kept_until_there_is_an_active_pod() {
        let front = service("front", &json!(null));
        let mut there = slice(&front, 9, "p1");
        there.annotations_mut().insert("leadergroup.dev/stamp".to_owned(), "g0/9".to_owned());
        assert_eq!(plan("Managed", &[&front], &[&there], &Route::AsBefore), (vec![], None));
        let written = ["front-leadergroup-ipv4 Some(1) Some(\"p2\")"];
        assert_eq!(plan("Managed", &[&front], &[&there], &to("p2", 1)).0, written);
    }

    /// A group with a declared holder whose label and stamp are these.
    fn election(owned: bool, role: Role, stamp: i64) -> election::Group {
        let pod = PodRef { name: "p1".into(), uid: "p1".into() };
        let grant = Uuid::from_u128(7);
        let declared = Declaration {
            token: 7,
            grant: Some(grant.to_string()),
            holder: Some(pod.clone()),
            ..Declaration::default()
        };
        let verdict = Verdict::Unknown;
        let member = Member { pod: pod.clone(), role, verdict, ..Member::standby("p1", stamp) };
        // Paused, so that a lost label is not put back.
        let policy = Policy { paused: true, ..Policy::default() };
        let world = World { members: vec![member], declared: declared.clone(), policy, ..World::default() };
        let mut group = election::Group::new(world.clone());
        if owned {
            let now = Duration::from_secs(100);
            let seed = Uuid::from_u128(1_000);
            let asked = group.step(Event::Owned { seed, row: None, world: world.clone() }, now);
            let row =
                Row { token: 7, grant: Some(grant), holder: Some(pod), confirmed: true, ..Row::default() };
            let read = Outcome::Read { row: Some(row), declared: Some(declared) };
            group.step(Event::Outcome(asked[0].0, read, world), now);
            assert_eq!(*group.phase(), Phase::Stable);
        }
        group
    }

    #[test]
    fn the_declared_holder_with_the_label_of_its_term_is_routed_to_by_whoever_decides() {
        let route = |decider: Decider, role, stamp| {
            Route::of(&election(decider == Decider::This, role, stamp), decider)
        };
        for decider in [Decider::This, Decider::None] {
            assert_eq!(route(decider, Role::Active, 7), Some(to("p1", 7)));
        }
        assert_eq!(route(Decider::Another, Role::Active, 7), None);
        // The stamp was taken off, or the promotion is not seen yet.
        assert_eq!(route(Decider::This, Role::Active, 6), Some(Route::AsBefore));
        assert_eq!(route(Decider::None, Role::Active, 6), Some(Route::AsBefore));
        // The label was taken off.
        assert_eq!(route(Decider::This, Role::Standby, 7), Some(Route::Nowhere(7)));
        // Another replica may be changing the holder.
        assert_eq!(route(Decider::None, Role::Standby, 7), Some(Route::AsBefore));
        // It is being read who the holder is.
        let reading = election(false, Role::Standby, 7);
        assert_eq!(Route::of(&reading, Decider::This), Some(Route::AsBefore));
    }

    #[test]
    fn a_replica_decides_unless_another_one_lives_that_does() {
        let [own, other] = [(); 2].map(|()| Peer { session: SessionId::new(), place: None });
        let view = |living: &[&Peer]| {
            let (mut sessions, at) = (Sessions::default(), (Duration::ZERO, Duration::ZERO));
            sessions.beat(own.session, living.iter().copied().cloned().collect(), Vec::new(), at);
            sessions
        };
        let (alone, both, mut lost) = (view(&[&own]), view(&[&own, &other]), view(&[&own, &other]));
        lost.lost();
        let by_other = || Owner::Other(other.session);
        for (owner, sessions, decider) in [
            (Owner::This, &alone, Decider::This),
            (by_other(), &both, Decider::Another),
            (by_other(), &alone, Decider::None),
            (by_other(), &lost, Decider::None),
            (Owner::Unknown, &both, Decider::None),
            (Owner::Foreign("c2/shop/web/u".into()), &alone, Decider::Another),
        ] {
            assert_eq!(Decider::of(&owner, sessions), decider, "{owner:?}");
        }
    }
}
