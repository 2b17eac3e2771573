//! What the slices of the Services list: one endpoint of each address family, and the same in all families.

use std::collections::BTreeSet;

use leadergroup::api::{ACTIVE_VALUE, ROLE_LABEL};

use super::{Checker, Name, SELECTOR_IS_FOLLOWED, Serving};
use crate::history::{Change, ServiceView, SliceView, outcome::Invariant};

impl Checker<'_> {
    /// The serving endpoints in other slices of the same Service, and this one, by address family; none if the Service
    /// need not have at most one. Slices follow an edit of the selector late, whatever the operator does.
    pub(super) fn serving(&self, change: &Change, slice: &SliceView, namespace: &str) -> Option<Serving> {
        let service = slice.service.as_ref()?;
        let (view, edited) = self.services.get(&(namespace.to_owned(), service.clone()))?;
        if edited.is_some_and(|edited| change.seen < edited.plus(SELECTOR_IS_FOLLOWED))
            || slice.service_uid.as_ref().is_some_and(|uid| *uid != view.uid)
            || !self.routes_to_active(namespace, view)
        {
            return None;
        }
        let slices = self.slices.range((namespace.to_owned(), String::new())..);
        let slices = slices.take_while(|((of, _), _)| of == namespace).map(|(_, other)| other);
        let mut serving = Serving::new();
        for other in slices.filter(|other| other.service == slice.service) {
            // A copy of Endpoints, and a slice that somebody else writes, need not have the Service as owner.
            if other.service_uid.as_ref().is_none_or(|uid| *uid == view.uid) {
                serving.entry(other.family.clone()).or_default().extend(other.serving.iter().cloned());
            }
        }
        Some(serving)
    }

    /// Counts the serving endpoints that one Service has in the family of this slice, over all its slices.
    pub(super) fn count_in(&mut self, change: &Change, slice: &SliceView, namespace: &str) {
        let mut serving = self.serving(change, slice, namespace).unwrap_or_default();
        let serving = serving.remove(&slice.family).unwrap_or_default();
        let service = slice.service.as_deref().unwrap_or_default();
        let of = format!("{namespace}/{service} {}", slice.family);
        if serving.len() > 1 && self.reported.insert((of, serving.clone())) {
            let text = format!("Service {service} ({}) lists the endpoints {serving:?}", slice.family);
            self.violated(Invariant::OneActive, change, text);
        }
    }

    /// The slices of several address families are written one after the other. A slice is behind by one change at most:
    /// when one of a family is written, the others list what this one lists now, or did before.
    ///
    /// If another one is of a later term, this one is behind itself: a write of the former owner was late, or the owner
    /// has written the other one first. Then the roles are exchanged: this one lists what the other one lists now, or
    /// did before.
    ///
    /// A slice whose write is not answered waits for the answer, and may be behind by more. Slices of other Services
    /// do not wait, and neither does one of this Service in another family.
    pub(super) fn compare_families(&mut self, change: &Change, slice: &SliceView, before: &BTreeSet<String>) {
        let namespace = &change.id.namespace;
        let Some(mut serving) = self.serving(change, slice, namespace) else { return };
        let own = serving.remove(&slice.family).unwrap_or_default();
        let others = self.slices.range((namespace.clone(), String::new())..);
        let others = others.take_while(|((of, _), _)| of == namespace);
        let others: Vec<_> = others.filter(|(_, other)| other.service == slice.service).collect();
        let waits = |name: &Name| self.history.is_unanswered(name, change.seen);
        let ahead: Vec<_> = others.iter().filter(|(_, other)| slice.is_behind(other)).collect();
        let behind: BTreeSet<String> = if ahead.is_empty() {
            others.iter().filter(|(name, _)| waits(name)).for_each(|(_, other)| {
                serving.remove(&other.family);
            });
            let known: BTreeSet<_> = own.union(before).collect();
            serving.into_values().flatten().filter(|pod| !known.contains(pod)).collect()
        } else if waits(&(namespace.clone(), change.id.name.clone())) {
            BTreeSet::new()
        } else {
            let lists = |(name, other): &(&Name, &SliceView), pod| {
                other.serving.contains(pod) || self.listed.get(*name).is_some_and(|it| it.contains(pod))
            };
            slice.serving.iter().filter(|pod| !ahead.iter().all(|it| lists(it, pod))).cloned().collect()
        };
        let service = slice.service.as_deref().unwrap_or_default();
        let of = format!("{namespace}/{service}, other families than {}", slice.family);
        if !behind.is_empty() && self.reported.insert((of, behind.clone())) {
            let late = if ahead.is_empty() { "still lists" } else { "lists late" };
            let text = format!("Service {service} {late} {behind:?} in one of its address families");
            self.violated(Invariant::OneActive, change, text);
        }
    }

    /// Counts the endpoints of all Services as they are at the end: those that were not judged because their selector
    /// had just been edited.
    pub(super) fn count_all_endpoints(&mut self) {
        let Some(last) = self.history.changes.last() else { return };
        for ((namespace, _), slice) in self.slices.clone() {
            self.count_in(last, &slice, &namespace);
        }
    }

    /// Whether a Service selects active pods, or names a group and leaves its endpoints to the operator.
    pub(super) fn routes_to_active(&self, namespace: &str, service: &ServiceView) -> bool {
        let groups = self.groups.values().filter(|group| group.namespace == namespace);
        let mut routings = groups.map(|group| &group.view.routing);
        let role = |label: &str| service.selector.get(label).map(String::as_str);
        role(ROLE_LABEL) == Some(ACTIVE_VALUE)
            || (service.group.is_some() && service.selects_nothing(ROLE_LABEL))
            || routings.any(|it| role(&it.role_label) == Some(&it.active_value))
    }
}
