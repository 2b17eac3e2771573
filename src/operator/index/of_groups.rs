//! Objects that name a group by their label: the Services whose endpoints the operator manages, and their
//! `EndpointSlices`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _, runtime::watcher};

use crate::{
    api::GROUP_LABEL,
    operator::{object::GroupName, watch_health::Scope},
};

/// Objects of one kind that name their group.
pub(super) struct OfGroups<K> {
    of: HashMap<GroupName, BTreeMap<String, K>>,
    /// The group of each object, by the object's own namespace and name.
    group: HashMap<GroupName, GroupName>,
    /// The objects of the lists that are being read.
    listing: HashMap<Scope, BTreeSet<GroupName>>,
}

impl<K> Default for OfGroups<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), group: HashMap::new(), listing: HashMap::new() }
    }
}

impl<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>> OfGroups<K> {
    /// The objects that name this group.
    pub(super) fn of(&self, group: &GroupName) -> Vec<&K> {
        self.of.get(group).into_iter().flat_map(BTreeMap::values).collect()
    }

    /// Takes an event of the watch in. Returns the groups that it concerns, and whether a list is complete.
    pub(super) fn apply(&mut self, scope: &Scope, event: watcher::Event<K>) -> (BTreeSet<GroupName>, bool) {
        let mut concerned = BTreeSet::new();
        let mut complete = false;
        match event {
            watcher::Event::Apply(object) => self.put(object, &mut concerned),
            watcher::Event::Delete(object) => {
                if let Some(name) = GroupName::of(&object) {
                    concerned.extend(self.take(&name));
                }
            }
            watcher::Event::Init => {
                self.listing.insert(scope.clone(), BTreeSet::new());
            }
            watcher::Event::InitApply(object) => {
                if let (Some(seen), Some(name)) = (self.listing.get_mut(scope), GroupName::of(&object)) {
                    seen.insert(name);
                }
                self.put(object, &mut concerned);
            }
            watcher::Event::InitDone => {
                let seen = self.listing.remove(scope).unwrap_or_default();
                let inside = |name: &GroupName| scope.as_ref().is_none_or(|scope| *scope == name.namespace);
                let known = self.group.keys().filter(|name| inside(name) && !seen.contains(name));
                let gone: Vec<_> = known.cloned().collect();
                concerned.extend(gone.iter().filter_map(|name| self.take(name)));
                complete = true;
            }
        }
        (concerned, complete)
    }

    fn put(&mut self, object: K, concerned: &mut BTreeSet<GroupName>) {
        let Some(name) = GroupName::of(&object) else { return };
        concerned.extend(self.take(&name));
        let Some(group) = object.labels().get(GROUP_LABEL) else { return };
        let group = GroupName { namespace: name.namespace.clone(), name: group.as_str().into() };
        self.group.insert(name, group.clone());
        self.of.entry(group.clone()).or_default().insert(object.name_any(), object);
        concerned.insert(group);
    }

    /// Forgets an object. Returns the group that it named.
    fn take(&mut self, name: &GroupName) -> Option<GroupName> {
        let group = self.group.remove(name)?;
        if let Some(objects) = self.of.get_mut(&group) {
            objects.remove(&*name.name);
            if objects.is_empty() {
                self.of.remove(&group);
            }
        }
        Some(group)
    }
}
