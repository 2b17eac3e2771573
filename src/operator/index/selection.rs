//! Which groups select which pods.
//!
//! Groups are found by one label that their selector
//! demands, and pods by their labels, so that each costs only a few look-ups in a namespace with thousands of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::{
    api::PodSelector,
    operator::object::{GroupName, has_precedence, record::Record, version},
};

type Labels = BTreeMap<String, String>;

/// All pods and groups, by namespace.
#[derive(Default)]
pub(super) struct Selection {
    namespaces: HashMap<Arc<str>, Namespace>,
}

type Label = (String, String);

/// A pod as it was last seen. It is kept as JSON, because a decoded pod takes six times as much memory, and is decoded
/// again only when the spec of a group changes, and for the endpoints of Services.
struct KeptPod {
    labels: Labels,
    version: u64,
    json: Box<[u8]>,
}

impl KeptPod {
    fn new(pod: &Pod) -> Self {
        let json = serde_json::to_vec(pod).expect("a pod came from JSON and has only text as keys");
        Self { labels: pod.labels().clone(), version: version(pod), json: json.into() }
    }

    fn pod(&self) -> Pod {
        serde_json::from_slice(&self.json).expect("it was a pod when it was encoded")
    }
}

#[derive(Default)]
struct Namespace {
    pods: BTreeMap<Arc<str>, KeptPod>,
    pods_by_label: HashMap<Label, BTreeSet<Arc<str>>>,
    /// The groups, each with the label under which it is found.
    groups: BTreeMap<GroupName, (Arc<Record>, Option<Label>)>,
    /// Groups by one of the labels that they demand.
    groups_by_label: HashMap<Label, BTreeSet<GroupName>>,
    /// Groups that demand no particular label.
    unlabelled: BTreeSet<GroupName>,
}

/// The groups that select a pod, the oldest first.
pub(super) type Selected = Vec<GroupName>;

impl Namespace {
    fn put_group(&mut self, name: &GroupName, group: Arc<Record>) {
        // The label that the fewest other groups are found under: thousands of groups may have one label in common.
        let demanded = group.object.spec.selector.match_labels.iter();
        let demanded = demanded.map(|(key, value)| (key.clone(), value.clone()));
        let label = demanded.min_by_key(|label| self.groups_by_label.get(label).map_or(0, BTreeSet::len));
        match &label {
            Some(label) => self.groups_by_label.entry(label.clone()).or_default().insert(name.clone()),
            None => self.unlabelled.insert(name.clone()),
        };
        self.groups.insert(name.clone(), (group, label));
    }

    fn take_group(&mut self, name: &GroupName) {
        match self.groups.remove(name) {
            Some((_, Some(label))) => take(&mut self.groups_by_label, &label, name),
            Some((_, None)) => {
                self.unlabelled.remove(name);
            }
            None => {}
        }
    }

    fn put_pod(&mut self, uid: &Arc<str>, pod: &Pod) {
        if self.pods.get(uid).is_none_or(|old| old.labels != *pod.labels()) {
            self.take_pod(uid);
            for label in pairs(pod.labels()) {
                self.pods_by_label.entry(label).or_default().insert(uid.clone());
            }
        }
        self.pods.insert(uid.clone(), KeptPod::new(pod));
    }

    fn take_pod(&mut self, uid: &str) -> Option<KeptPod> {
        let (uid, pod) = self.pods.remove_entry(uid)?;
        for label in pairs(&pod.labels) {
            take(&mut self.pods_by_label, &label, &uid);
        }
        Some(pod)
    }

    /// The groups that may select pods with these labels.
    fn candidates(&self, labels: &Labels) -> impl Iterator<Item = &GroupName> {
        let labelled = pairs(labels).filter_map(|label| self.groups_by_label.get(&label));
        labelled.flatten().chain(&self.unlabelled)
    }

    fn selected(&self, labels: &Labels) -> Selected {
        let mut found: Vec<_> = self
            .candidates(labels)
            .filter_map(|name| Some((name, &self.groups.get(name)?.0)))
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

    /// The pods that this selector matches.
    fn matching(&self, selector: &PodSelector) -> Vec<&KeptPod> {
        let demanded = pairs(&selector.match_labels).map(|label| self.pods_by_label.get(&label));
        let fewest = demanded.min_by_key(|uids| uids.map_or(0, BTreeSet::len));
        let matches = |pod: &&KeptPod| selector.matches(&pod.labels);
        match fewest {
            // It demands no particular label.
            None => self.pods.values().filter(matches).collect(),
            Some(uids) => {
                let uids = uids.into_iter().flatten();
                uids.filter_map(|uid| self.pods.get(uid)).filter(matches).collect()
            }
        }
    }
}

fn pairs(labels: &Labels) -> impl Iterator<Item = Label> {
    labels.iter().map(|(key, value)| (key.clone(), value.clone()))
}

/// Removes an entry, and its label if it was the last one.
fn take<T: Ord>(by_label: &mut HashMap<Label, BTreeSet<T>>, label: &Label, entry: &T) {
    if let Some(entries) = by_label.get_mut(label) {
        entries.remove(entry);
        if entries.is_empty() {
            by_label.remove(label);
        }
    }
}

impl Selection {
    /// Takes a group in, or a newer version of it.
    pub(super) fn put_group(&mut self, name: &GroupName, group: Arc<Record>) {
        let namespace = self.namespaces.entry(name.namespace.clone()).or_default();
        namespace.take_group(name);
        namespace.put_group(name, group);
    }

    /// Forgets a group.
    pub(super) fn take_group(&mut self, name: &GroupName) {
        if let Some(namespace) = self.namespaces.get_mut(&name.namespace) {
            namespace.take_group(name);
        }
        self.forget_if_empty(&name.namespace);
    }

    fn forget_if_empty(&mut self, name: &str) {
        if self.namespaces.get(name).is_some_and(|it| it.groups.is_empty() && it.pods.is_empty()) {
            self.namespaces.remove(name);
        }
    }

    /// Takes a pod in, unless a newer version of it is known. Returns the groups that selected it before and those that
    /// do now.
    pub(super) fn put_pod(&mut self, pod: &Pod) -> Option<(Selected, Selected)> {
        let uid: Arc<str> = pod.uid()?.into();
        let namespace = self.namespaces.entry(pod.namespace()?.into()).or_default();
        let old = namespace.pods.get(&uid);
        if old.is_some_and(|old| old.version != u64::MAX && old.version > version(pod)) {
            return None;
        }
        let now = namespace.selected(pod.labels());
        let before = match old {
            Some(old) if old.labels == *pod.labels() => now.clone(),
            Some(old) => namespace.selected(&old.labels),
            None => Selected::new(),
        };
        namespace.put_pod(&uid, pod);
        Some((before, now))
    }

    /// Whether the watch has shown the pod, and not yet that it is gone.
    pub(super) fn contains_pod(&self, pod: &Pod) -> bool {
        let (Some(namespace), Some(uid)) = (pod.namespace(), pod.uid()) else { return false };
        self.namespaces.get(&*namespace).is_some_and(|namespace| namespace.pods.contains_key(&*uid))
    }

    /// A pod as it was last seen.
    pub(super) fn pod(&self, namespace: &str, uid: &str) -> Option<Pod> {
        self.namespaces.get(namespace)?.pods.get(uid).map(KeptPod::pod)
    }

    /// A pod that several groups select, with these groups.
    pub(super) fn contested(&self, namespace: &str, uid: &str) -> Option<(Pod, Selected)> {
        let namespace = self.namespaces.get(namespace)?;
        let pod = namespace.pods.get(uid)?;
        let selected = namespace.selected(&pod.labels);
        (selected.len() > 1).then(|| (pod.pod(), selected))
    }

    /// Forgets a pod. Returns the groups that selected it.
    pub(super) fn take_pod(&mut self, name: &str, uid: &str) -> Selected {
        let Some(namespace) = self.namespaces.get_mut(name) else { return Selected::new() };
        let Some(pod) = namespace.take_pod(uid) else { return Selected::new() };
        let selected = namespace.selected(&pod.labels);
        self.forget_if_empty(name);
        selected
    }

    /// The pods of a group's namespace that its selector matches, each with all the groups that select it.
    pub(super) fn pods_of(&self, name: &GroupName) -> Vec<(Pod, Selected)> {
        let Some(namespace) = self.namespaces.get(&name.namespace) else { return Vec::new() };
        let Some((group, _)) = namespace.groups.get(name) else { return Vec::new() };
        let matching = namespace.matching(&group.object.spec.selector).into_iter();
        matching.map(|pod| (pod.pod(), namespace.selected(&pod.labels))).collect()
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(index: usize) -> Arc<Record> {
        let object = json!({
            "metadata": { "namespace": "shop", "name": format!("g{index}"), "uid": format!("u{index}") },
            "spec": { "selector": { "matchLabels": { "app": "web", "instance": index.to_string() } } }
        });
        let object = serde_json::from_value(object).expect("a group");
        let name = name(index);
        Arc::new(Record::first(object, name, "c1").expect("it has a name"))
    }

    fn name(index: usize) -> GroupName {
        GroupName { namespace: "shop".into(), name: format!("g{index}").into() }
    }

    fn pod(index: usize) -> Pod {
        let labels = json!({ "app": "web", "instance": index.to_string() });
        let pod = json!({ "metadata": { "namespace": "shop", "name": format!("p{index}"), "uid": format!("p{index}"),
            "resourceVersion": "1", "labels": labels } });
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn groups_with_a_label_in_common_are_not_searched_one_by_one() {
        const GROUPS: usize = 100;
        let mut selection = Selection::default();
        for index in 0..GROUPS {
            selection.put_group(&name(index), record(index));
        }
        for index in 0..GROUPS {
            let (before, now) = selection.put_pod(&pod(index)).expect("it is new");
            assert_eq!((before, now), (vec![], vec![name(index)]));
            let namespace = &selection.namespaces["shop"];
            let searched = namespace.candidates(pod(index).labels()).count();
            assert!(searched <= 2, "{searched} groups");
            let pods: Vec<Pod> = selection.pods_of(&name(index)).into_iter().map(|(pod, _)| pod).collect();
            assert_eq!(pods, [pod(index)]);
        }
        for index in 0..GROUPS {
            assert_eq!(selection.take_pod("shop", &format!("p{index}")), [name(index)]);
            selection.take_group(&name(index));
        }
        assert!(selection.namespaces.is_empty(), "nothing is kept of a namespace without pods and groups");
    }
}
