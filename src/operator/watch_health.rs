//! Which watches have shown their first list, and which fail: each for the namespaces that it covers, so that one
//! namespace that cannot be watched takes nothing from the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    controller::Outage,
    message::{Scope, Watched},
};

/// A watch that has not failed for so long, while the API server answers, works: it is tried again more often than that.
const QUIET_WATCH: Duration = Duration::from_secs(10);
/// What a group cannot be worked for without.
const NEEDED: [Watched; 2] = [Watched::Groups, Watched::Pods];

/// What is known of the watches.
pub(super) struct Watches {
    /// Those that groups and pods are watched in.
    scopes: Vec<Scope>,
    /// Those that have shown their first list.
    synced: BTreeSet<(Watched, Scope)>,
    /// Those that fail, with the reason and when they last did.
    failing: BTreeMap<(Watched, Scope), (Outage, Duration)>,
}

/// Whether the operator can do its work, as far as the watches go.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It sees what there is, in one namespace at least.
    Clear,
    /// The first lists are on their way.
    Coming,
    /// It sees nothing, for this reason.
    None(String),
}

impl Watches {
    /// Of these namespaces, each for itself; empty: of all, together.
    pub(super) fn new(namespaces: &[String]) -> Self {
        let one = |name: &String| Some(name.as_str().into());
        let scopes = if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(one).collect() };
        Self { scopes, synced: BTreeSet::new(), failing: BTreeMap::new() }
    }

    /// A watch has shown its list. True when it had failed before.
    pub(super) fn listed(&mut self, watched: Watched, scope: Scope) -> bool {
        let watch = (watched, scope);
        let had_failed = self.failing.remove(&watch).is_some();
        self.synced.insert(watch);
        had_failed
    }

    /// A watch failed. True when that, or the reason, is new.
    pub(super) fn failed(&mut self, watched: Watched, scope: Scope, problem: &str, now: Duration) -> bool {
        let before = self.failing.remove(&(watched, scope.clone())).map(|(outage, _)| outage);
        let is_new = before.as_ref().is_none_or(|before| before.problem != problem);
        self.failing.insert((watched, scope), (Outage::goes_on(before, problem, now), now));
        is_new
    }

    /// The API server answers: a watch that is resumed may stay silent for hours; one that still fails would have said so
    /// again by now. True when one was taken for failing until now.
    pub(super) fn forgive(&mut self, now: Duration) -> bool {
        let before = self.failing.len();
        self.failing.retain(|_, (_, at)| now.saturating_sub(*at) < QUIET_WATCH);
        self.failing.len() != before
    }

    /// Why the pods of a namespace have never been seen; none when they have, or when nothing speaks against it.
    pub(super) fn blindness(&self, namespace: &Arc<str>) -> Option<&Outage> {
        let watch = (Watched::Pods, self.scope_of(namespace));
        if self.synced.contains(&watch) {
            return None;
        }
        self.failing.get(&watch).map(|(outage, _)| outage)
    }

    /// Whether a group of this namespace may be claimed: without its pods it would seem to have none, with nothing to
    /// adopt and no labels to take off.
    ///
    /// One that is being deleted does not wait for them for ever: its namespace may be going, and the right to watch
    /// them with it. Its end lists those that carry its stamp by itself.
    pub(super) fn allow_claim(&self, namespace: &Arc<str>, deleting: bool, now: Duration) -> bool {
        let scope = self.scope_of(namespace);
        let without_pods = || deleting && self.blindness(namespace).is_some_and(|outage| outage.lasts(now));
        self.is_synced(Watched::Groups, &scope) && (self.is_synced(Watched::Pods, &scope) || without_pods())
    }

    pub(super) fn sight(&self) -> Sight {
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

    /// The scope of the watches that show what is in this namespace.
    fn scope_of(&self, namespace: &Arc<str>) -> Scope {
        self.scopes.iter().all(Option::is_some).then(|| namespace.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const LATER: Duration = Duration::from_secs(110);

    fn watches(namespaces: &[&str]) -> Watches {
        Watches::new(&namespaces.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    }

    fn list_all(watches: &mut Watches, scope: Option<&str>) {
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
    fn a_watch_that_has_not_failed_for_long_works() {
        let mut watches = watches(&[]);
        list_all(&mut watches, None);
        assert!(watches.allow_claim(&"any".into(), false, NOW));
        assert!(watches.failed(Watched::NodeLeases, None, "forbidden", NOW));
        assert!(!watches.failed(Watched::NodeLeases, None, "forbidden", NOW), "that is known");
        assert!(matches!(watches.sight(), Sight::None(_)), "all groups alike need the nodes' heartbeats");
        assert!(!watches.forgive(NOW) && watches.forgive(LATER));
        assert_eq!(watches.sight(), Sight::Clear);
    }
}
