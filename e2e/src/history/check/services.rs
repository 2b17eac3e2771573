//! I1 for Services: how many endpoints serve, over all slices of a Service.

use std::collections::BTreeSet;

use leadergroup::api::{ACTIVE_VALUE, ROLE_LABEL};

use super::{Checker, Name, SELECTOR_IS_FOLLOWED, Serving};
use crate::history::{Change, Invariant, ServiceView, SliceView};

impl Checker<'_> {
    pub(super) fn slice_changed(&mut self, change: &Change, name: &Name, slice: &SliceView) {
        let former = self.slices.insert(name.clone(), slice.clone());
        let is_of_another_term = former.is_some_and(|former| former.stamp != slice.stamp);
        self.count_in(change, slice, &change.id.namespace);
        let serving: BTreeSet<_> = slice.serving.iter().cloned().collect();
        let before = self.written.insert(name.clone(), serving.clone()).unwrap_or_default();
        // To list no pod for a while is not a change of its own: other families may leave that out. Neither is another
        // term of the same pod.
        let is_same = before.is_empty() || (is_of_another_term && before == serving);
        let before = Some(before).filter(|_| !is_same).or_else(|| self.listed.remove(name));
        let before = before.unwrap_or_default();
        // A slice that lists no pod, as each does when it is created, says nothing about the other families.
        if !serving.is_empty() {
            self.compare_families(change, slice, &before);
        }
        self.listed.insert(name.clone(), before);
    }

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
    fn count_in(&mut self, change: &Change, slice: &SliceView, namespace: &str) {
        let mut serving = self.serving(change, slice, namespace).unwrap_or_default();
        let serving = serving.remove(&slice.family).unwrap_or_default();
        let service = slice.service.as_deref().unwrap_or_default();
        let of = format!("{namespace}/{service} {}", slice.family);
        if serving.len() > 1 && self.reported.insert((of, serving.clone())) {
            let text = format!("Service {service} ({}) lists the endpoints {serving:?}", slice.family);
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
    fn routes_to_active(&self, namespace: &str, service: &ServiceView) -> bool {
        let groups = self.groups.values().filter(|group| group.namespace == namespace);
        let mut routings = groups.map(|group| &group.view.routing);
        let role = |label: &str| service.selector.get(label).map(String::as_str);
        role(ROLE_LABEL) == Some(ACTIVE_VALUE)
            || (service.group.is_some() && service.selects_nothing(ROLE_LABEL))
            || routings.any(|it| role(&it.role_label) == Some(&it.active_value))
    }
}
