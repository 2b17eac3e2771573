//! Pods that appear, change, move from group to group, and go away.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, runtime::watcher};

use super::{Index, Request, Requests, selection::Selected};
use crate::operator::{
    object::{GroupName, trim},
    watch_health::{Scope, Watched},
};

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

    /// Gives a pod to the first of the groups that select it, and notes in the others that it is contested.
    pub(super) fn assign(&mut self, pod: &Pod, selected: &Selected, now: Duration, requests: &mut Requests) {
        let uid: Arc<str> = pod.uid().unwrap_or_default().into();
        let Some(first) = selected.first() else {
            self.placement.take(&uid);
            return;
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if let Some(former) = self.placement.put(&uid, first, node)
            && former != *first
        {
            self.leave(&former, &uid, requests);
        }
        for (rank, name) in selected.iter().enumerate() {
            let Some(group) = self.groups.get_mut(name) else { continue };
            let changed = if rank == 0 {
                let (changed, owner) = group.pod_seen(&uid, pod, &self.leases, now);
                requests.extend(owner.map(|owner| Request::ReadOwner(group.record().clone(), owner)));
                let pod = group.pods.get(&uid);
                self.timers.at_latest(name, pod.and_then(|pod| pod.next_deadline(&self.leases, now)));
                changed
            } else {
                group.pod_is_contested(&uid, &first.to_string())
            };
            if changed {
                self.dirty.insert(name.clone());
            }
        }
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
