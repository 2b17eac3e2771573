//! Which groups select which pods.
//!
//! A pod belongs to the oldest group whose selector matches it. Groups are found by one label that their selector
//! demands, so that a pod costs only a few look-ups in a namespace with thousands of groups.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::{
    api::LeaderGroupSpec,
    operator::{
        object::{GroupName, has_precedence, version},
        record::Record,
    },
};

type Labels = BTreeMap<String, String>;

/// All pods and groups, by namespace.
#[derive(Default)]
pub(super) struct Selection {
    namespaces: HashMap<Arc<str>, Namespace>,
}

#[derive(Default)]
struct Namespace {
    pods: BTreeMap<Arc<str>, Arc<Pod>>,
    groups: BTreeMap<GroupName, Arc<Record>>,
    /// Groups by a label that they demand.
    by_label: HashMap<(String, String), BTreeSet<GroupName>>,
    /// Groups that demand no particular label.
    unlabelled: BTreeSet<GroupName>,
}

/// The groups that select a pod, the one it belongs to first.
pub(super) type Selected = Vec<GroupName>;

impl Namespace {
    fn slot(&mut self, spec: &LeaderGroupSpec) -> &mut BTreeSet<GroupName> {
        match spec.selector.match_labels.iter().next() {
            Some((key, value)) => self.by_label.entry((key.clone(), value.clone())).or_default(),
            None => &mut self.unlabelled,
        }
    }

    fn selected(&self, labels: &Labels) -> Selected {
        let labelled =
            labels.iter().filter_map(|(key, value)| self.by_label.get(&(key.clone(), value.clone())));
        let candidates = labelled.flatten().chain(&self.unlabelled);
        let mut found: Vec<_> = candidates
            .filter_map(|name| Some((name, self.groups.get(name)?)))
            .filter(|(_, group)| group.object.spec.selector.matches(labels))
            .collect();
        found.sort_by(|(_, one), (_, other)| {
            if has_precedence(&one.object, &other.object) {
                std::cmp::Ordering::Less
            } else {
                std::cmp::Ordering::Greater
            }
        });
        found.into_iter().map(|(name, _)| name.clone()).collect()
    }
}

impl Selection {
    /// Takes a group in, or a newer version of it.
    pub(super) fn put_group(&mut self, name: &GroupName, group: Arc<Record>) {
        self.take_group(name);
        let namespace = self.namespaces.entry(name.namespace.clone()).or_default();
        namespace.slot(&group.object.spec).insert(name.clone());
        namespace.groups.insert(name.clone(), group);
    }

    /// Forgets a group.
    pub(super) fn take_group(&mut self, name: &GroupName) {
        if let Some(namespace) = self.namespaces.get_mut(&name.namespace)
            && let Some(group) = namespace.groups.remove(name)
        {
            let slot = namespace.slot(&group.object.spec);
            slot.remove(name);
        }
    }

    /// Takes a pod in, unless a newer version of it is known. Returns the groups that selected it before and those that do
    /// now.
    pub(super) fn put_pod(&mut self, pod: Pod) -> Option<(Selected, Selected, Arc<Pod>)> {
        let uid: Arc<str> = pod.uid()?.into();
        let namespace = self.namespaces.entry(pod.namespace()?.into()).or_default();
        let old = namespace.pods.get(&uid);
        if old.is_some_and(|old| version(&**old) != u64::MAX && version(&**old) > version(&pod)) {
            return None;
        }
        let now = namespace.selected(pod.labels());
        let before = match old {
            Some(old) if old.labels() == pod.labels() => now.clone(),
            Some(old) => namespace.selected(old.labels()),
            None => Selected::new(),
        };
        let pod = Arc::new(pod);
        namespace.pods.insert(uid, pod.clone());
        Some((before, now, pod))
    }

    /// Whether the watch has shown the pod, and not yet that it is gone.
    pub(super) fn contains_pod(&self, pod: &Pod) -> bool {
        let (Some(namespace), Some(uid)) = (pod.namespace(), pod.uid()) else { return false };
        self.namespaces.get(&*namespace).is_some_and(|namespace| namespace.pods.contains_key(&*uid))
    }

    /// Forgets a pod. Returns the groups that selected it.
    pub(super) fn take_pod(&mut self, namespace: &str, uid: &str) -> Selected {
        let Some(namespace) = self.namespaces.get_mut(namespace) else { return Selected::new() };
        let Some(pod) = namespace.pods.remove(uid) else { return Selected::new() };
        namespace.selected(pod.labels())
    }

    /// The pods of a group's namespace that its selector matches, each with all the groups that select it.
    pub(super) fn pods_of(&self, name: &GroupName) -> Vec<(Arc<Pod>, Selected)> {
        let Some(namespace) = self.namespaces.get(&name.namespace) else { return Vec::new() };
        let Some(group) = namespace.groups.get(name) else { return Vec::new() };
        let matching = namespace.pods.values().filter(|pod| group.object.spec.selector.matches(pod.labels()));
        matching.map(|pod| (pod.clone(), namespace.selected(pod.labels()))).collect()
    }

    /// The UIDs of all pods in the scope of a watch.
    pub(super) fn pod_uids(&self, scope: Option<&str>) -> Vec<(Arc<str>, Arc<str>)> {
        let inside = self.namespaces.iter().filter(|(name, _)| scope.is_none_or(|scope| scope == &***name));
        inside
            .flat_map(|(name, namespace)| namespace.pods.keys().map(|uid| (name.clone(), uid.clone())))
            .collect()
    }

    /// The names of all groups in the scope of a watch.
    pub(super) fn group_names(&self, scope: Option<&str>) -> Vec<GroupName> {
        let inside = self.namespaces.iter().filter(|(name, _)| scope.is_none_or(|scope| scope == &***name));
        inside.flat_map(|(_, namespace)| namespace.groups.keys().cloned()).collect()
    }
}
