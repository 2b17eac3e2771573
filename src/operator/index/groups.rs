//! Groups that appear, change, cannot be decoded, and go away.

use std::{collections::BTreeSet, time::Duration};

use kube::{ResourceExt as _, runtime::watcher};

use super::{
    Index, IndexedGroup, Notice, Request, Requests,
    watch_health::{Scope, Watched},
};
use crate::{
    api::{LeaderGroup, Sighting, Unreadable},
    operator::object::{GroupName, record::Record, version},
};

impl Index {
    pub(super) fn group_event(
        &mut self,
        scope: &Scope,
        event: watcher::Event<Sighting>,
        now: Duration,
        requests: &mut Requests,
    ) {
        let listing = (Watched::Groups, scope.clone());
        match event {
            watcher::Event::Apply(object) => self.group_seen(object, now, requests),
            watcher::Event::Delete(object) => {
                if let Some(name) = GroupName::of(&object) {
                    self.group_gone(&name, now, requests);
                }
            }
            watcher::Event::Init => {
                self.listing.insert(listing, BTreeSet::new());
            }
            watcher::Event::InitApply(object) => {
                if let (Some(seen), Some(name)) = (self.listing.get_mut(&listing), GroupName::of(&object)) {
                    seen.insert(name.to_string());
                }
                self.group_seen(object, now, requests);
            }
            watcher::Event::InitDone => {
                let seen = self.listing.remove(&listing).unwrap_or_default();
                let in_scope =
                    |name: &&GroupName| scope.as_deref().is_none_or(|scope| *scope == *name.namespace);
                let undecodable: Vec<_> = self.undecodable.keys().filter(in_scope).cloned().collect();
                for name in self.selection.group_names(scope.as_deref()).into_iter().chain(undecodable) {
                    if !seen.contains(&name.to_string()) {
                        self.group_gone(&name, now, requests);
                    }
                }
                self.synced(Watched::Groups, scope.clone(), requests);
            }
        }
    }

    /// A version of a group, from a watch or a quorum read.
    pub(super) fn group_seen(&mut self, object: Sighting, now: Duration, requests: &mut Requests) {
        let Some(name) = GroupName::of(&object) else {
            requests.push(Request::Log(Notice::GroupWithoutName));
            return;
        };
        match object.0 {
            Ok(object) => {
                let known = self.groups.get(&name).filter(|known| known.undecodable.is_none());
                let repeated = known.is_some_and(|known| {
                    *known.record().uid == *object.uid().unwrap_or_default()
                        && version(&known.record().object) == version(&object)
                        && version(&object) != u64::MAX
                });
                if !repeated {
                    self.put_group(&name, object, now, requests);
                }
            }
            Err(unreadable) if unreadable.metadata.deletion_timestamp.is_some() => {
                self.undecodable_leaves(&name, &unreadable, now, requests);
            }
            Err(unreadable) => self.group_undecodable(&name, unreadable, now, requests),
        }
    }

    fn put_group(&mut self, name: &GroupName, object: LeaderGroup, now: Duration, requests: &mut Requests) {
        let uid = object.uid().unwrap_or_default();
        let known = self.groups.get(name).map(IndexedGroup::record);
        if known.is_some_and(|known| *known.uid != *uid) {
            // Deleted and created again. Nothing that is known of the old group is true of the new one.
            self.group_gone(name, now, requests);
        } else if known.is_some_and(|known| version(&known.object) > version(&object)) {
            return;
        }
        let mut spec_changed = true;
        let mut declared = [None, None];
        let record = if let Some(known) = self.groups.get_mut(name) {
            spec_changed = known.record().object.spec != object.spec;
            declared[0] = known.declared_holder().map(str::to_owned);
            known.update(object, now);
            declared[1] = known.declared_holder().map(str::to_owned);
            known.record().clone()
        } else {
            let Some(record) = Record::first(object, name.clone(), &self.cluster) else {
                requests.push(Request::Log(Notice::UnusableKey(name.clone())));
                return;
            };
            let group = IndexedGroup::new(record, now);
            let record = group.record().clone();
            self.groups.insert(name.clone(), group);
            record
        };
        self.undecodable.remove(name);
        self.selection.put_group(name, record);
        // The facts on a pod depend on more of the spec than the selector: on the probe, and on the label's values.
        if spec_changed {
            for (pod, selected) in self.selection.pods_of(name) {
                self.assign(&pod, &selected, now, requests);
            }
        } else if declared[0] != declared[1] {
            // A pod that several groups select may belong to another one of them now.
            for uid in declared.into_iter().flatten() {
                if let Some((pod, selected)) = self.selection.contested(&name.namespace, &uid) {
                    self.assign(&pod, &selected, now, requests);
                }
            }
        }
        self.dirty.insert(name.clone());
    }

    pub(super) fn group_gone(&mut self, name: &GroupName, now: Duration, requests: &mut Requests) {
        let was_undecodable = self.undecodable.remove(name).is_some();
        let pods = self.selection.pods_of(name);
        self.selection.take_group(name);
        self.timers.set(name, None);
        let group = self.groups.remove(name);
        if group.is_some() || was_undecodable {
            requests.push(Request::Forget(name.clone()));
        }
        if let Some(group) = group {
            for uid in group.pods.into_keys() {
                self.placement.take(&uid);
                requests.push(Request::StopProbing(uid));
            }
        }
        for (pod, selected) in pods {
            let selected = selected.into_iter().filter(|other| other != name).collect();
            self.assign(&pod, &selected, now, requests);
        }
        self.dirty.insert(name.clone());
    }

    /// A group that cannot be decoded stays as it was last decoded, if it ever was; only its status changes.
    fn group_undecodable(
        &mut self,
        name: &GroupName,
        unreadable: Box<Unreadable>,
        now: Duration,
        requests: &mut Requests,
    ) {
        let uid = unreadable.metadata.uid.clone().unwrap_or_default();
        let seen = version(&Sighting(Err(unreadable.clone())));
        if self.groups.get(name).is_some_and(|known| *known.record().uid != *uid) {
            self.group_gone(name, now, requests);
        }
        if let Some(known) = self.groups.get_mut(name) {
            if version(&known.record().object) > seen {
                return;
            }
            known.cannot_decode(unreadable.metadata.resource_version.clone(), unreadable.problem.clone());
            self.dirty.insert(name.clone());
            requests.push(Request::PassOn(name.clone()));
        }
        let generation = (uid, unreadable.metadata.generation);
        if self.undecodable.insert(name.clone(), generation.clone()) == Some(generation) {
            // It is reported once. A replica that can decode it may report otherwise, and the two would overwrite each
            // other's status for ever.
            return;
        }
        requests.push(Request::Log(Notice::Undecodable(name.clone(), unreadable.problem.clone())));
        requests.push(Request::ReportUndecodable(unreadable));
    }

    /// The groups that cannot be decoded, except those that are being deleted.
    pub(in crate::operator) fn undecodable(&self) -> impl Iterator<Item = &GroupName> {
        self.undecodable.keys()
    }

    /// Whether this group is one of them.
    pub(in crate::operator) fn is_undecodable(&self, name: &GroupName) -> bool {
        self.undecodable.contains_key(name)
    }

    /// A group that is being deleted and cannot be decoded is cleaned up with the fields that can be. It stays marked
    /// as undecodable: a spec that is understood only in part must cause nothing else.
    fn undecodable_leaves(
        &mut self,
        name: &GroupName,
        unreadable: &Unreadable,
        now: Duration,
        requests: &mut Requests,
    ) {
        let known = self.groups.get(name);
        let known = known.filter(|known| Some(&*known.record().uid) == unreadable.metadata.uid.as_deref());
        let first = known.is_none_or(|known| known.undecodable.is_none());
        let remains = unreadable.remains(known.map(|known| &known.record().object.spec));
        self.put_group(name, remains, now, requests);
        let Some(known) = self.groups.get_mut(name) else { return };
        if known.record().object.metadata.resource_version != unreadable.metadata.resource_version {
            // A newer version is known.
            return;
        }
        known.undecodable = Some(unreadable.problem.clone());
        if first {
            let problem = unreadable.problem.clone();
            requests.push(Request::Log(Notice::UndecodableAndDeleted(name.clone(), problem)));
        }
    }
}
