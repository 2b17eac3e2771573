//! Which group each pod belongs to, and on which node it runs. A lease or a label of a node concerns the groups that
//! have pods there; a cluster may have thousands of nodes and of groups, and each lease is renewed every 10 s.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::operator::object::GroupName;

/// The group and the node of each pod that belongs to a group.
#[derive(Debug, Default)]
pub(super) struct Placement {
    pods: HashMap<Arc<str>, Place>,
    /// The same pods by node. A pod that is not scheduled is on none.
    by_node: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
}

#[derive(Debug)]
struct Place {
    group: GroupName,
    node: Option<Arc<str>>,
}

impl Placement {
    /// A pod belongs to this group, and is on this node. Returns the group that it belonged to before.
    pub(super) fn put(&mut self, pod: &Arc<str>, group: &GroupName, node: Option<&str>) -> Option<GroupName> {
        let node = node.filter(|node| !node.is_empty());
        if let Some(place) = self.pods.get_mut(pod).filter(|place| place.node.as_deref() == node) {
            return Some(std::mem::replace(&mut place.group, group.clone()));
        }
        let former = self.take(pod);
        let node = node.map(|node| {
            let node = self.by_node.get_key_value(node).map_or_else(|| node.into(), |(node, _)| node.clone());
            self.by_node.entry(Arc::clone(&node)).or_default().insert(pod.clone());
            node
        });
        self.pods.insert(pod.clone(), Place { group: group.clone(), node });
        former
    }

    /// A pod belongs to no group any more. Returns the group that it belonged to.
    pub(super) fn take(&mut self, pod: &str) -> Option<GroupName> {
        let Place { group, node } = self.pods.remove(pod)?;
        if let Some(node) = node
            && let Some(pods) = self.by_node.get_mut(&node)
        {
            pods.remove(pod);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(group)
    }

    /// The group that a pod belongs to.
    pub(super) fn group_of(&self, pod: &str) -> Option<&GroupName> {
        self.pods.get(pod).map(|place| &place.group)
    }

    /// The groups that have pods on this node, each once.
    pub(super) fn groups_on(&self, node: &str) -> BTreeSet<GroupName> {
        let pods = self.by_node.get(node).into_iter().flatten();
        pods.filter_map(|pod| self.group_of(pod)).cloned().collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.by_node.is_empty()
    }
}
