//! I1 across address families: the slices of one Service follow each other.

use std::collections::BTreeSet;

use super::{Checker, Name};
use crate::history::{Change, Invariant, SliceView};

impl Checker<'_> {
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
}
