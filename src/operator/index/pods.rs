//! Pods that appear, change, move from group to group, and go away.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, runtime::watcher};

use super::{
    Index, IndexedGroup, Request, Requests,
    contest::Contest,
    selection::Selected,
    watch_health::{Scope, Watched},
};
use crate::operator::object::{GroupName, trim};

impl Index {
    pub(super) fn pod_event(
        &mut self,
        scope: &Scope,
        event: watcher::Event<Pod>,
        now: Duration,
        requests: &mut Requests,
    ) {
        let listing = (Watched::Pods, scope.clone());
        match event {
            watcher::Event::Apply(pod) => self.pod_seen(&pod, now, requests),
            watcher::Event::Delete(pod) => {
                if let (Some(namespace), Some(uid)) = (pod.namespace(), pod.uid()) {
                    self.pod_gone(&namespace, &uid.into(), requests);
                }
            }
            watcher::Event::Init => {
                self.listing.insert(listing, BTreeSet::new());
            }
            watcher::Event::InitApply(pod) => {
                if let (Some(seen), Some(uid)) = (self.listing.get_mut(&listing), pod.uid()) {
                    seen.insert(uid);
                }
                self.pod_seen(&pod, now, requests);
            }
            watcher::Event::InitDone => {
                let seen = self.listing.remove(&listing).unwrap_or_default();
                for (namespace, uid) in self.selection.pod_uids(scope.as_deref()) {
                    if !seen.contains(&*uid) {
                        self.pod_gone(&namespace, &uid, requests);
                    }
                }
                self.synced(Watched::Pods, scope.clone(), requests);
            }
        }
    }

    /// Pods that a call returned. Only the watches say which pods exist: an answer may arrive after the event that its
    /// pod is gone.
    pub(super) fn pods_read(&mut self, pods: Vec<Pod>, now: Duration, requests: &mut Requests) {
        for mut pod in pods {
            if self.selection.contains_pod(&pod) {
                trim(&mut pod);
                self.pod_seen(&pod, now, requests);
            }
        }
    }

    fn pod_seen(&mut self, pod: &Pod, now: Duration, requests: &mut Requests) {
        let Some((before, selected)) = self.selection.put_pod(pod) else { return };
        let uid: Arc<str> = pod.uid().unwrap_or_default().into();
        for name in before.iter().filter(|name| !selected.contains(name)) {
            self.leave(name, &uid, requests);
        }
        self.assign(pod, &selected, now, requests);
    }

    /// Gives a pod to one of the groups that select it. If there are several, notes in all that it is contested.
    pub(super) fn assign(&mut self, pod: &Pod, selected: &Selected, now: Duration, requests: &mut Requests) {
        let uid: Arc<str> = pod.uid().unwrap_or_default().into();
        let Some(keeper) = self.keeper(pod, selected) else {
            self.placement.take(&uid);
            return;
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if let Some(former) = self.placement.put(&uid, keeper, node)
            && former != *keeper
        {
            self.leave(&former, &uid, requests);
        }
        for name in selected {
            let contest = self.contest(pod, selected, (name, keeper));
            let Some(group) = self.groups.get_mut(name) else { continue };
            let mut changed = group.pod_contested(&uid, contest);
            if name == keeper {
                let (seen, owner) = group.pod_seen(&uid, pod, &self.leases, now);
                changed |= seen;
                requests.extend(owner.map(|owner| Request::ReadOwner(group.record().clone(), owner)));
                let pod = group.pods.get(&uid);
                self.timers.at_latest(name, pod.and_then(|pod| pod.next_deadline(&self.leases, now)));
            }
            if changed {
                self.dirty.insert(name.clone());
            }
        }
    }

    /// Of the groups that select a pod, the one that it belongs to: the one that has made it active, else the one that
    /// declares it as its holder, else the oldest. All replicas see that alike.
    fn keeper<'a>(&self, pod: &Pod, selected: &'a Selected) -> Option<&'a GroupName> {
        let uid = pod.metadata.uid.as_deref();
        let is_known =
            |name: &GroupName, is: &dyn Fn(&IndexedGroup) -> bool| self.groups.get(name).is_some_and(is);
        let active = selected.iter().find(|name| is_known(name, &|group| group.has_made_active(pod)));
        let declared = || {
            selected
                .iter()
                .find(|name| is_known(name, &|group| uid.is_some() && group.declared_holder() == uid))
        };
        active.or_else(declared).or(selected.first())
    }

    /// What a group has to know of a pod that others select, too.
    fn contest(
        &self,
        pod: &Pod,
        selected: &Selected,
        (name, keeper): (&GroupName, &GroupName),
    ) -> Option<Contest> {
        let groups: BTreeSet<_> =
            selected.iter().filter(|other| *other != name).map(ToString::to_string).collect();
        let reads_as_active = || self.groups.get(name).is_some_and(|group| group.reads_as_active(pod));
        (!groups.is_empty()).then(|| Contest {
            pod: pod.name_any().into(),
            groups,
            is_active_elsewhere: name != keeper && reads_as_active(),
        })
    }

    fn pod_gone(&mut self, namespace: &str, uid: &Arc<str>, requests: &mut Requests) {
        for name in self.selection.take_pod(namespace, uid) {
            self.leave(&name, uid, requests);
        }
        self.placement.take(uid);
    }

    /// A pod is no longer one of a group's.
    fn leave(&mut self, name: &GroupName, uid: &Arc<str>, requests: &mut Requests) {
        let Some(group) = self.groups.get_mut(name) else { return };
        if group.pods.contains_key(uid) {
            requests.push(Request::StopProbing(uid.clone()));
        }
        group.pod_gone(uid);
        self.dirty.insert(name.clone());
    }
}
