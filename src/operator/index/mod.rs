//! What this replica sees: groups, pods, evidence, the health of its watches, and the lock's sessions.
//!
//! [`Index::apply`] takes one event and the present time. It updates the view, notes which groups have to be looked at,
//! and returns requests for the controller. The index performs no I/O, starts no task, sends no message and reads no
//! clock. It neither decides who is active nor records which groups this replica owns; the election does.
//!
//! A group is *dirty* if something changed that the election or the status can see. A probe that leaves a pod's
//! verdict unchanged does not make its group dirty, nor does a new version of a pod that differs in nothing else.

mod attached;
pub(super) mod connectivity;
mod contest;
pub(super) mod coverage;
mod evidence;
mod group;
mod groups;
mod lock;
pub(super) mod lock_view;
pub(super) mod node_labels;
mod nodes;
mod opinion;
pub(super) mod outage;
mod placement;
mod pod;
pub(super) mod pod_owners;
mod pods;
mod request;
mod selection;
mod services;
#[cfg(test)]
mod tests;
pub(super) mod timers;
pub(super) mod watch_health;
mod watches;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};

pub(super) use attached::SliceOfOthers;
pub(super) use group::IndexedGroup;
pub(super) use request::{Event, Notice, Request};

use super::object::GroupName;
use crate::{
    api::{Endpoints, HoldConnection},
    election::World,
    health::{NodeLeases, Reach, Target},
    ownership::{Probing, Sessions},
};
use attached::AllAttached;
use connectivity::{Connectivity, Lag};
use lock_view::LockView;
use node_labels::Nodes;
use outage::{Hindrance, OUTAGE_PATIENCE, Outage};
use placement::Placement;
use selection::Selection;
use timers::Timers;
use watch_health::{Scope, Sight, WatchHealth, Watched};

/// Everything that this replica sees.
pub(super) struct Index {
    cluster: String,
    /// After how long without a heartbeat this replica no longer counts on its session.
    session_ttl: Duration,
    groups: HashMap<GroupName, IndexedGroup>,
    /// Which groups select which pods.
    selection: Selection,
    /// The group that each pod belongs to, and its node.
    placement: Placement,
    leases: NodeLeases,
    nodes: Nodes,
    /// The Services that name a group, and their slices.
    services: AllAttached<Service>,
    slices: AllAttached<EndpointSlice>,
    /// The slices of any Service that others write, and that list endpoints.
    others: AllAttached<SliceOfOthers>,
    /// When a node lease last arrived.
    lease_seen: Duration,
    lock: LockView,
    connectivity: Connectivity,
    reach: Reach,
    lag: Lag,
    watches: WatchHealth,
    /// Groups that cannot be decoded, with UID and generation: each generation is reported once.
    undecodable: HashMap<GroupName, (String, Option<i64>)>,
    /// The objects of a list that is being read, by watch and scope.
    listing: HashMap<(Watched, Scope), BTreeSet<String>>,
    dirty: BTreeSet<GroupName>,
    /// When the evidence on a group's pods may change although nothing happens.
    timers: Timers,
}

/// The requests that an event leads to.
type Requests = Vec<Request>;

impl Index {
    /// An index for this cluster that has seen nothing. `namespaces` are those that are watched, each by itself; if
    /// there are none, all are watched together.
    pub(super) fn new(cluster: String, namespaces: &[String], session_ttl: Duration) -> Self {
        Self {
            cluster,
            session_ttl,
            groups: HashMap::new(),
            selection: Selection::default(),
            placement: Placement::default(),
            leases: NodeLeases::default(),
            nodes: Nodes::default(),
            services: AllAttached::default(),
            slices: AllAttached::default(),
            others: AllAttached::default(),
            lease_seen: Duration::ZERO,
            lock: LockView::default(),
            connectivity: Connectivity::default(),
            reach: Reach::default(),
            lag: Lag::default(),
            watches: WatchHealth::new(namespaces),
            undecodable: HashMap::new(),
            listing: HashMap::new(),
            dirty: BTreeSet::new(),
            timers: Timers::default(),
        }
    }

    /// For a replica on this node.
    pub(super) fn on_node(self, node: Option<String>) -> Self {
        Self { reach: Reach::of(node), ..self }
    }

    /// Takes an event in. The requests must be carried out in their order, before the next event.
    pub(super) fn apply(&mut self, event: Event, now: Duration) -> Requests {
        let mut requests = Requests::new();
        match event {
            Event::Group(scope, event) => self.group_event(&scope, event, now, &mut requests),
            Event::Pod(scope, event) => self.pod_event(&scope, event, now, &mut requests),
            Event::NodeLease(event) => self.lease_event(event, now, &mut requests),
            Event::Node(event) => self.node_event(event, &mut requests),
            Event::Service(scope, event) => self.service_event(&scope, event, &mut requests),
            Event::Slice(scope, event) => self.slice_event(&scope, event, &mut requests),
            Event::OtherSlice(scope, event) => self.other_slice_event(&scope, event, &mut requests),
            Event::WatchFailed(watched, scope, problem) => {
                self.watch_failed(watched, &scope, &problem, now, &mut requests);
            }
            Event::Probe(event) => self.probed(&event, now, &mut requests),
            Event::Opinion(from, opinion) => self.opinion(from, &opinion, now, &mut requests),
            Event::Retargeted(uid, first) => self.retargeted(&uid, first, now),
            Event::Lock(news) => self.lock_news(news, now, &mut requests),
            Event::ApiServer { reachable } => self.api_server(reachable, now, &mut requests),
            Event::PodsRead(pods) => self.pods_read(pods, now, &mut requests),
            Event::GroupRead(object) => self.group_seen(object, now, &mut requests),
            Event::OwnerRead { group, uid, owner, found } => {
                if let Some(known) = self.groups.get_mut(&group).filter(|known| *known.record().uid == *uid) {
                    known.owner_read(&owner, found);
                    self.dirty.insert(group);
                }
            }
        }
        requests
    }

    /// Lets time pass: evidence may change because of it.
    pub(super) fn advance(&mut self, now: Duration) {
        while let Some(name) = self.timers.pop(now) {
            let Some(group) = self.groups.get_mut(&name) else { continue };
            if group.assess(&self.leases, now) {
                // The next deadline is set when the group is looked at.
                self.dirty.insert(name);
            } else {
                self.timers.set(&name, group.next_deadline(&self.leases, now));
            }
        }
    }

    /// When [`Self::advance`] has to be called next.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.timers.first()
    }

    /// The groups to look at, each once. One that is gone may be among them.
    pub(super) fn take_dirty(&mut self) -> BTreeSet<GroupName> {
        std::mem::take(&mut self.dirty)
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Makes a group dirty for a reason that the index does not see.
    pub(super) fn touch(&mut self, name: &GroupName) {
        self.dirty.insert(name.clone());
    }

    pub(super) fn group(&self, name: &GroupName) -> Option<&IndexedGroup> {
        self.groups.get(name)
    }

    /// The node of the pod that a group's status declares as the holder.
    pub(super) fn holder_node(&self, name: &GroupName) -> Option<&str> {
        let group = self.groups.get(name)?;
        let node = group.pods.get(group.declared_holder()?)?.node();
        Some(node).filter(|node| !node.is_empty())
    }

    /// Whether this replica cannot judge the declared holder, for reasons of its own.
    pub(super) fn is_blind_to_holder(&self, name: &GroupName, now: Duration) -> bool {
        let Some(group) = self.groups.get(name) else { return false };
        let holder = group.declared_holder().and_then(|uid| group.pods.get(uid));
        holder.is_some_and(|pod| pod.hindrance().is_some() || self.reach.cuts_off(pod.node(), now))
    }

    /// Whether the declared holder has not answered this replica's last probe.
    pub(super) fn does_not_hear_holder(&self, name: &GroupName) -> bool {
        let Some(group) = self.groups.get(name) else { return false };
        let holder = group.declared_holder().and_then(|uid| group.pods.get(uid));
        holder.is_some_and(|pod| pod.is_unheard())
    }

    /// Whether another replica may hear a pod that this one does not hear, and that could be active: not the declared
    /// holder, and none that another group selects, too.
    pub(super) fn misses_candidates(&self, name: &GroupName, now: Duration) -> bool {
        let Some(group) = self.groups.get(name) else { return false };
        let holder = group.declared_holder();
        group.pods.iter().any(|(uid, pod)| {
            holder != Some(&**uid)
                && !group.is_contested(uid)
                && pod.is_missed(self.reach.cuts_off(pod.node(), now), now)
        })
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.lock.sessions
    }

    /// The world of a group at this time. It contains everything that was seen, so the group is no longer dirty.
    /// `holder` is the UID of the pod whose evidence is weighed as a holder's.
    pub(super) fn world(&mut self, name: &GroupName, holder: Option<&str>, now: Duration) -> Option<World> {
        let lock_away = self.lock.is_away(now);
        let group = self.groups.get_mut(name)?;
        group.set_holder(holder);
        group.assess(&self.leases, now);
        self.timers.set(name, group.next_deadline(&self.leases, now));
        self.dirty.remove(name);
        let lock_away = lock_away && group.deleting_for(now) >= OUTAGE_PATIENCE;
        Some(group.world(lock_away, &self.nodes, self.watches.show_nodes()))
    }

    /// What to probe at each pod of a group; `None` for a pod that must not be probed.
    pub(super) fn targets(&self, name: &GroupName, probing: Probing) -> Vec<(Arc<str>, Option<Target>)> {
        let Some(group) = self.groups.get(name) else { return Vec::new() };
        let spec = &group.record().object.spec;
        let holder = group.declared_holder();
        let target = |uid: &Arc<str>, pod: &pod::TrackedPod| {
            let is_holder = holder == Some(&**uid);
            let wanted = match probing {
                Probing::All => true,
                Probing::Holder => is_holder,
                Probing::None => false,
            };
            // A crash of the active pod is for the owner to notice, and one connection to each is enough.
            let is_ours = probing == Probing::All && is_holder;
            let hold = if is_ours { spec.health.hold_connection } else { HoldConnection::Never };
            (uid.clone(), pod.target(spec, is_holder, hold).filter(|_| wanted))
        };
        group.pods.iter().map(|(uid, pod)| target(uid, pod)).collect()
    }

    /// What keeps this replica from working for any group of a namespace, once it is worth reporting. It is reported at
    /// once on a group whose status was never written.
    pub(super) fn hindrance(
        &self,
        namespace: &Arc<str>,
        never_seen: bool,
        now: Duration,
    ) -> Option<Hindrance> {
        let worth_reporting = |outage: &&Outage| never_seen || outage.lasts(now);
        let lock = self.lock.outage().filter(worth_reporting);
        let watch = self.watches.blindness(namespace).filter(worth_reporting);
        lock.map(|outage| Hindrance::Lock(outage.problem.clone()))
            .or_else(|| watch.map(|outage| Hindrance::Pods(outage.problem.clone())))
    }

    /// The Services that name a group, and the slices of these and of former ones.
    pub(super) fn services(&self, name: &GroupName) -> (Vec<&Service>, Vec<&EndpointSlice>) {
        (self.services.of(name), self.slices.of(name))
    }

    /// The slices of these Services that others write, and that list endpoints.
    pub(super) fn others(&self, services: &[&Service]) -> Vec<&SliceOfOthers> {
        let names = services.iter().filter_map(|service| GroupName::of(*service));
        names.flat_map(|name| self.others.of(&name)).collect()
    }

    /// Whether the pods of a namespace, its Services and their slices have been listed.
    pub(super) fn shows_endpoints(&self, namespace: &Arc<str>) -> bool {
        self.watches.show_endpoints(namespace)
    }

    /// Why the Services of a namespace or their slices cannot be watched, once that is worth reporting.
    pub(super) fn endpoints_problem(&self, namespace: &Arc<str>, now: Duration) -> Option<&str> {
        self.watches.endpoints_problem(namespace, now)
    }

    /// The outage of the watch of a namespace's Services, or of their slices, if one of them fails.
    pub(super) fn services_outage(&self, namespace: &Arc<str>) -> Option<&Outage> {
        self.watches.services_outage(namespace)
    }

    /// A pod as it was last seen.
    pub(super) fn pod(&self, namespace: &str, uid: &str) -> Option<Pod> {
        self.selection.pod(namespace, uid)
    }

    /// Whether the replica sees what it needs for its work.
    pub(super) fn sight(&self) -> Sight {
        self.watches.sight()
    }

    /// For how long watches of this kind have failed.
    pub(super) fn watch_failing_for(&self, watched: Watched, now: Duration) -> Duration {
        self.watches.failing_for(watched, now)
    }

    /// Whether a group may be claimed: its pods must have been listed.
    pub(super) fn allows_claim(&self, name: &GroupName, now: Duration) -> bool {
        let deleting = self.groups.get(name).is_some_and(|group| group.record().is_deleting());
        self.watches.allow_claim(&name.namespace, deleting, now)
    }

    /// Makes the groups in the scope of a watch dirty of whose Services something is to be said: those with managed
    /// endpoints, those that a Service names, and those whose status says something about one.
    fn touch_with_services(&mut self, scope: &Scope) {
        let inside = |name: &GroupName| scope.as_ref().is_none_or(|scope| *scope == name.namespace);
        let has_services = |name: &GroupName, group: &IndexedGroup| {
            let record = group.record();
            record.object.spec.routing.endpoints == Endpoints::Managed
                || self.services.has(name)
                || record.service_problem().is_some()
        };
        let concerned = self.groups.iter().filter(|(name, group)| inside(name) && has_services(name, group));
        self.dirty.extend(concerned.map(|(name, _)| name.clone()));
    }

    fn touch_all(&mut self) {
        self.dirty.extend(self.groups.keys().cloned());
    }
}
