//! Which watches have shown their first list, and which fail. Each is recorded with the namespace that it covers, so
//! that a namespace that cannot be watched does not affect the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::outage::Outage;

/// How long one watch lasts before it is renewed. A dead connection is noticed five seconds after that.
pub(in crate::operator) const WATCH_SECONDS: u32 = 20;
/// How long a connection to the API server may be silent: longer than a watch on which nothing happens, which lasts up
/// to five seconds longer than asked for.
pub(in crate::operator) const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);

/// The namespace that a watch covers; `None` for all namespaces.
pub(in crate::operator) type Scope = Option<Arc<str>>;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::operator) enum Watched {
    Groups,
    Pods,
    NodeLeases,
    /// While this one fails, what was last seen of the nodes counts. All else works.
    Nodes,
    /// Only where endpoints are managed, or Services observed.
    Services,
    /// The same.
    EndpointSlices,
    /// Only where endpoints are managed. What it shows is only reported, so nothing waits for it.
    OtherSlices,
}

impl Watched {
    pub(in crate::operator) const ALL: [Self; 7] = [
        Self::Groups,
        Self::Pods,
        Self::NodeLeases,
        Self::Nodes,
        Self::Services,
        Self::EndpointSlices,
        Self::OtherSlices,
    ];

    /// The name in the metrics.
    pub(in crate::operator) fn resource(self) -> &'static str {
        match self {
            Self::Groups => "leadergroups",
            Self::Pods => "pods",
            Self::NodeLeases => "leases",
            Self::Nodes => "nodes",
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::OtherSlices => "endpointslices_of_others",
        }
    }
}

/// A watch that has not failed for this long, while the API server answers, works: a failed watch is tried again more
/// often than that.
const QUIET_WATCH: Duration = Duration::from_secs(10);
/// The watches without which nothing can be done for a group.
const NEEDED: [Watched; 2] = [Watched::Groups, Watched::Pods];

/// The state of the watches.
pub(in crate::operator) struct WatchHealth {
    /// The namespaces in which groups and pods are watched.
    scopes: Vec<Scope>,
    /// The watches that have shown their first list.
    synced: BTreeSet<(Watched, Scope)>,
    /// The watches that fail, with the reason and the time of the last failure.
    failing: BTreeMap<(Watched, Scope), (Outage, Duration)>,
}

/// Whether the watches show the operator what it needs.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::operator) enum Sight {
    /// They do, in at least one namespace.
    Clear,
    /// The first lists have not arrived yet.
    Coming,
    /// They do not, for this reason.
    None(String),
}

impl WatchHealth {
    /// For these namespaces, each by itself; if there are none, for all of them together.
    pub(in crate::operator) fn new(namespaces: &[String]) -> Self {
        let one = |name: &String| Some(name.as_str().into());
        let scopes = if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(one).collect() };
        Self { scopes, synced: BTreeSet::new(), failing: BTreeMap::new() }
    }

    /// A watch has shown its list. Returns whether it had failed before.
    pub(in crate::operator) fn listed(&mut self, watched: Watched, scope: Scope) -> bool {
        let watch = (watched, scope);
        let had_failed = self.failing.remove(&watch).is_some();
        self.synced.insert(watch);
        had_failed
    }

    /// A watch failed. Returns whether the failure or its reason is new.
    pub(in crate::operator) fn failed(
        &mut self,
        watched: Watched,
        scope: Scope,
        problem: &str,
        now: Duration,
    ) -> bool {
        let before = self.failing.remove(&(watched, scope.clone())).map(|(outage, _)| outage);
        let is_new = before.as_ref().is_none_or(|before| before.problem != problem);
        self.failing.insert((watched, scope), (Outage::goes_on(before, problem, now), now));
        is_new
    }

    /// The API server answers. A watch that was resumed may be silent for hours, and one that still fails would have
    /// failed again by now. Returns whether a watch counted as failing until now.
    pub(in crate::operator) fn forgive(&mut self, now: Duration) -> bool {
        let before = self.failing.len();
        self.failing.retain(|_, (_, at)| now.saturating_sub(*at) < QUIET_WATCH);
        self.failing.len() != before
    }

    /// Why the pods of a namespace have never been seen; `None` if they have, or if their watch has not failed.
    pub(in crate::operator) fn blindness(&self, namespace: &Arc<str>) -> Option<&Outage> {
        let watch = (Watched::Pods, self.scope_of(namespace));
        if self.synced.contains(&watch) {
            return None;
        }
        self.failing.get(&watch).map(|(outage, _)| outage)
    }

    /// Whether a group of this namespace may be claimed. Before its pods are listed it would seem to have none: no
    /// active pod to keep, and no labels to remove.
    ///
    /// A group that is being deleted does not wait for them for ever. Its namespace may be deleted too, and the right
    /// to watch the pods may be gone. The deletion itself lists the pods that carry the group's stamp.
    pub(in crate::operator) fn allow_claim(
        &self,
        namespace: &Arc<str>,
        deleting: bool,
        now: Duration,
    ) -> bool {
        let scope = self.scope_of(namespace);
        let without_pods = || deleting && self.blindness(namespace).is_some_and(|outage| outage.lasts(now));
        self.is_synced(Watched::Groups, &scope) && (self.is_synced(Watched::Pods, &scope) || without_pods())
    }

    /// Whether the nodes have been listed.
    pub(in crate::operator) fn show_nodes(&self) -> bool {
        self.is_synced(Watched::Nodes, &None)
    }

    /// Whether the pods of a namespace, its Services and their slices have been listed. Before the pods are listed, the
    /// one that is routed to would seem to be gone.
    pub(in crate::operator) fn show_endpoints(&self, namespace: &Arc<str>) -> bool {
        let scope = self.scope_of(namespace);
        let needed = [Watched::Pods, Watched::Services, Watched::EndpointSlices];
        needed.into_iter().all(|watched| self.is_synced(watched, &scope))
    }

    /// Why the Services of a namespace or their slices cannot be watched, once that is worth reporting.
    pub(in crate::operator) fn endpoints_problem(&self, namespace: &Arc<str>, now: Duration) -> Option<&str> {
        let scope = self.scope_of(namespace);
        let needed = [Watched::Services, Watched::EndpointSlices, Watched::OtherSlices];
        let mut failing =
            needed.into_iter().filter_map(|watched| self.failing.get(&(watched, scope.clone())));
        failing.find(|(outage, _)| outage.lasts(now)).map(|(outage, _)| outage.problem.as_str())
    }

    /// The outage of the watch of a namespace's Services, or of their slices, if one of them fails.
    pub(in crate::operator) fn services_outage(&self, namespace: &Arc<str>) -> Option<&Outage> {
        let scope = self.scope_of(namespace);
        let needed = [Watched::Services, Watched::EndpointSlices];
        let mut failing =
            needed.into_iter().filter_map(|watched| self.failing.get(&(watched, scope.clone())));
        failing.next().map(|(outage, _)| outage)
    }

    /// For how long watches of this kind have failed: in the namespace where it is longest, zero if none fails.
    pub(in crate::operator) fn failing_for(&self, watched: Watched, now: Duration) -> Duration {
        let failing = self.failing.iter().filter(|((failing, _), _)| *failing == watched);
        failing.map(|(_, (outage, _))| now.saturating_sub(outage.since)).max().unwrap_or_default()
    }

    pub(in crate::operator) fn sight(&self) -> Sight {
        let fails = |scope: &Scope| {
            NEEDED
                .into_iter()
                .find_map(|watched| Some((watched, self.failing.get(&(watched, scope.clone()))?)))
        };
        let none = |(watched, (outage, _)): (Watched, &(Outage, Duration))| {
            Sight::None(format!("watching {watched:?} fails: {}", outage.problem))
        };
        if let Some(failure) = self.failing.get(&(Watched::NodeLeases, None)) {
            return none((Watched::NodeLeases, failure));
        }
        let mut failures = self.scopes.iter().filter_map(fails);
        let mut sound = self.scopes.iter().filter(|scope| fails(scope).is_none()).peekable();
        match failures.next() {
            Some(failure) if sound.peek().is_none() => none(failure),
            _ if sound.all(|scope| NEEDED.into_iter().all(|watched| self.is_synced(watched, scope))) => {
                Sight::Clear
            }
            _ => Sight::Coming,
        }
    }

    fn is_synced(&self, watched: Watched, scope: &Scope) -> bool {
        self.synced.contains(&(watched, scope.clone()))
    }

    /// The scope of the watches that cover this namespace.
    fn scope_of(&self, namespace: &Arc<str>) -> Scope {
        self.scopes.iter().all(Option::is_some).then(|| namespace.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const LATER: Duration = Duration::from_secs(110);

    fn watches(namespaces: &[&str]) -> WatchHealth {
        WatchHealth::new(&namespaces.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    }

    fn list_all(watches: &mut WatchHealth, scope: Option<&str>) {
        for watched in NEEDED {
            watches.listed(watched, scope.map(Into::into));
        }
    }

    #[test]
    fn a_namespace_that_cannot_be_watched_takes_nothing_from_the_others() {
        let (a, b) = ("a".into(), "b".into());
        let mut watches = watches(&["a", "b"]);
        assert_eq!(watches.sight(), Sight::Coming);
        watches.failed(Watched::Pods, Some("a".into()), "forbidden", NOW);
        assert_eq!(watches.sight(), Sight::Coming, "the other one's lists are on their way");
        watches.listed(Watched::Groups, Some("b".into()));
        assert!(!watches.allow_claim(&b, false, LATER), "without its pods");
        watches.listed(Watched::Pods, Some("b".into()));
        assert_eq!(watches.sight(), Sight::Clear);
        assert!(watches.allow_claim(&b, false, NOW) && !watches.allow_claim(&a, false, LATER));
        assert!(watches.blindness(&a).is_some() && watches.blindness(&b).is_none());
        // What was seen once fails later.
        watches.failed(Watched::Groups, Some("b".into()), "forbidden, too", NOW);
        assert_eq!(watches.sight(), Sight::None("watching Pods fails: forbidden".to_owned()));
        assert!(watches.allow_claim(&b, false, NOW));
        assert!(watches.listed(Watched::Groups, Some("b".into())));
        assert_eq!(watches.sight(), Sight::Clear);
    }

    #[test]
    fn a_group_that_is_being_deleted_waits_for_its_pods_for_a_while() {
        let a = "a".into();
        let mut watches = watches(&["a"]);
        watches.failed(Watched::Pods, Some("a".into()), "forbidden", NOW);
        assert!(!watches.allow_claim(&a, true, LATER), "the groups have not been listed");
        watches.listed(Watched::Groups, Some("a".into()));
        assert!(!watches.allow_claim(&a, true, NOW) && !watches.allow_claim(&a, false, LATER));
        assert!(watches.allow_claim(&a, true, LATER));
    }

    #[test]
    fn observed_services_need_two_watches_which_count_as_failing_at_once() {
        for (watched, counts) in
            [(Watched::Services, true), (Watched::EndpointSlices, true), (Watched::OtherSlices, false)]
        {
            let mut watches = watches(&[]);
            watches.failed(watched, None, "forbidden", NOW);
            assert_eq!(watches.services_outage(&"any".into()).is_some(), counts, "{watched:?}");
            assert_eq!(watches.endpoints_problem(&"any".into(), NOW), None, "{watched:?}");
            assert!(watches.endpoints_problem(&"any".into(), LATER).is_some(), "{watched:?}");
            watches.listed(watched, None);
            assert!(watches.services_outage(&"any".into()).is_none(), "{watched:?}");
        }
    }

    #[test]
    fn a_watch_that_has_not_failed_for_long_works() {
        let mut watches = watches(&[]);
        list_all(&mut watches, None);
        assert!(watches.allow_claim(&"any".into(), false, NOW));
        assert!(watches.failed(Watched::NodeLeases, None, "forbidden", NOW));
        assert!(!watches.failed(Watched::NodeLeases, None, "forbidden", NOW), "that is known");
        assert!(matches!(watches.sight(), Sight::None(_)), "all groups alike need the nodes' heartbeats");
        let failing_for =
            |watches: &WatchHealth, watched| watches.failing_for(watched, NOW + Duration::from_secs(3));
        assert_eq!(failing_for(&watches, Watched::NodeLeases), Duration::from_secs(3));
        assert_eq!(failing_for(&watches, Watched::Pods), Duration::ZERO);
        assert!(!watches.forgive(NOW) && watches.forgive(LATER));
        assert_eq!(failing_for(&watches, Watched::NodeLeases), Duration::ZERO);
        assert_eq!(watches.sight(), Sight::Clear);
    }
}
