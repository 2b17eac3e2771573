//! Objects that name a group or a Service by a label: the Services whose endpoints the operator manages or looks at,
//! their `EndpointSlices`, and, where it manages endpoints, the slices of all Services that others write.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{ResourceExt, runtime::watcher};

use super::watch_health::Scope;
use crate::{api::GROUP_LABEL, operator::object::GroupName, routing::OtherSlice};

/// An object that belongs to another one.
pub(super) trait Attached {
    /// Its own namespace and name.
    fn name(&self) -> Option<GroupName>;

    /// The group or Service that it belongs to. An object without one is not kept.
    fn belongs_to(&self) -> Option<GroupName>;
}

impl Attached for Service {
    fn name(&self) -> Option<GroupName> {
        GroupName::of(self)
    }

    fn belongs_to(&self) -> Option<GroupName> {
        group_of(self)
    }
}

impl Attached for EndpointSlice {
    fn name(&self) -> Option<GroupName> {
        GroupName::of(self)
    }

    fn belongs_to(&self) -> Option<GroupName> {
        group_of(self)
    }
}

fn group_of(object: &impl ResourceExt) -> Option<GroupName> {
    Some(GroupName {
        namespace: object.namespace()?.into(),
        name: object.labels().get(GROUP_LABEL)?.as_str().into(),
    })
}

/// What is kept of a slice that others write. There is one for nearly every Service of the cluster, so it is little.
#[derive(Debug)]
pub(in crate::operator) struct SliceOfOthers {
    pub(in crate::operator) name: GroupName,
    /// The Service to which it adds endpoints.
    pub(in crate::operator) service: Option<Arc<str>>,
    /// It is a copy of the `Endpoints` of this name.
    pub(in crate::operator) is_copy: bool,
}

impl SliceOfOthers {
    pub(super) fn new(slice: &OtherSlice) -> Option<Self> {
        let service = slice.serves().map(Into::into);
        Some(Self { name: GroupName::of(slice)?, service, is_copy: slice.is_copy() })
    }
}

impl Attached for SliceOfOthers {
    fn name(&self) -> Option<GroupName> {
        Some(self.name.clone())
    }

    fn belongs_to(&self) -> Option<GroupName> {
        Some(GroupName { namespace: self.name.namespace.clone(), name: self.service.clone()? })
    }
}

/// All objects of one kind, by what they belong to.
pub(super) struct AllAttached<K> {
    of: HashMap<GroupName, Vec<K>>,
    /// What each object belongs to, by the object's own namespace and name.
    owner: HashMap<GroupName, GroupName>,
    /// The objects of the lists that are being read.
    listing: HashMap<Scope, BTreeSet<GroupName>>,
}

impl<K> Default for AllAttached<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), owner: HashMap::new(), listing: HashMap::new() }
    }
}

impl<K: Attached> AllAttached<K> {
    /// The objects that belong to this group or Service, in the order of their names.
    pub(super) fn of(&self, owner: &GroupName) -> Vec<&K> {
        let mut found: Vec<_> = self.of.get(owner).into_iter().flatten().collect();
        found.sort_by_key(|object| object.name());
        found
    }

    /// Whether any object belongs to this group or Service.
    pub(super) fn has(&self, owner: &GroupName) -> bool {
        self.of.contains_key(owner)
    }

    /// What the object with this name belongs to.
    pub(super) fn owner(&self, name: &GroupName) -> Option<&GroupName> {
        self.owner.get(name)
    }

    /// Takes an event of the watch in. Returns the groups or Services that it concerns, and whether a list is complete.
    pub(super) fn apply(&mut self, scope: &Scope, event: watcher::Event<K>) -> (BTreeSet<GroupName>, bool) {
        let mut concerned = BTreeSet::new();
        let mut complete = false;
        match event {
            watcher::Event::Apply(object) => self.put(object, &mut concerned),
            watcher::Event::Delete(object) => {
                if let Some(name) = object.name() {
                    concerned.extend(self.take(&name));
                }
            }
            watcher::Event::Init => {
                self.listing.insert(scope.clone(), BTreeSet::new());
            }
            watcher::Event::InitApply(object) => {
                if let (Some(seen), Some(name)) = (self.listing.get_mut(scope), object.name()) {
                    seen.insert(name);
                }
                self.put(object, &mut concerned);
            }
            watcher::Event::InitDone => {
                let seen = self.listing.remove(scope).unwrap_or_default();
                let inside = |name: &GroupName| scope.as_ref().is_none_or(|scope| *scope == name.namespace);
                let known = self.owner.keys().filter(|name| inside(name) && !seen.contains(name));
                let gone: Vec<_> = known.cloned().collect();
                concerned.extend(gone.iter().filter_map(|name| self.take(name)));
                complete = true;
            }
        }
        (concerned, complete)
    }

    fn put(&mut self, object: K, concerned: &mut BTreeSet<GroupName>) {
        let Some(name) = object.name() else { return };
        concerned.extend(self.take(&name));
        let Some(owner) = object.belongs_to() else { return };
        self.owner.insert(name, owner.clone());
        self.of.entry(owner.clone()).or_default().push(object);
        concerned.insert(owner);
    }

    /// Forgets an object. Returns what it belonged to.
    fn take(&mut self, name: &GroupName) -> Option<GroupName> {
        let owner = self.owner.remove(name)?;
        if let Some(objects) = self.of.get_mut(&owner) {
            objects.retain(|object| object.name().as_ref() != Some(name));
            if objects.is_empty() {
                self.of.remove(&owner);
            }
        }
        Some(owner)
    }
}
