//! What the operator keeps of the nodes: their labels, and whether they are about to be emptied.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

/// The taints by which autoscalers announce that they will remove a node: the Cluster Autoscaler, and Karpenter from
/// version 1 and before.
const REMOVAL_TAINTS: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"];

/// What is known of the nodes.
#[derive(Debug, Default)]
pub(in crate::operator) struct Nodes(HashMap<String, Known>);

/// What is known of one node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    leaving: bool,
    labels: BTreeMap<String, String>,
}

impl Nodes {
    /// A node was seen. Returns whether anything that matters has changed.
    pub(in crate::operator) fn seen(&mut self, node: &Node) -> bool {
        let known = Known { leaving: is_leaving(node), labels: node.labels().clone() };
        let before = self.0.insert(node.name_any(), known);
        before.unwrap_or_default() != self.0[&node.name_any()]
    }

    /// A node is gone. Returns whether it was known.
    pub(in crate::operator) fn gone(&mut self, node: &str) -> bool {
        self.0.remove(node).is_some()
    }

    /// Whether the node is about to be emptied.
    pub(in crate::operator) fn is_leaving(&self, node: &str) -> bool {
        self.0.get(node).is_some_and(|known| known.leaving)
    }

    /// Whether the node has all these labels. An unknown node has none.
    pub(in crate::operator) fn has_labels(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        let known =
            |(key, value): (&String, &String)| self.0.get(node)?.labels.get(key).map(|it| it == value);
        labels.iter().all(|label| known(label) == Some(true))
    }

    /// Those that are not among these nodes, which are all that exist.
    pub(in crate::operator) fn not_in(&self, nodes: &BTreeSet<String>) -> Vec<String> {
        self.0.keys().filter(|node| !nodes.contains(*node)).cloned().collect()
    }
}

/// Whether the node is cordoned, as `kubectl drain` does first, or an autoscaler is about to remove it.
fn is_leaving(node: &Node) -> bool {
    let Some(spec) = &node.spec else { return false };
    spec.unschedulable == Some(true)
        || spec.taints.iter().flatten().any(|taint| REMOVAL_TAINTS.contains(&taint.key.as_str()))
}

/// Removes the parts of a node that the operator never reads.
pub(in crate::operator) fn trim(node: &mut Node) {
    node.status = None;
    node.metadata.annotations = None;
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: &Value) -> Node {
        serde_json::from_value(json!({ "metadata": { "name": "n" }, "spec": spec })).expect("a node")
    }

    #[test]
    fn a_cordon_and_the_taints_of_autoscalers_count_and_other_taints_do_not() {
        let taint = |key| json!({ "taints": [{ "key": key, "effect": "NoSchedule" }] });
        let mut nodes = Nodes::default();
        let mut seen = |spec: &Value| (nodes.seen(&node(spec)), nodes.is_leaving("n"));
        assert_eq!(seen(&json!({})), (false, false));
        assert_eq!(seen(&json!({ "unschedulable": true })), (true, true));
        assert_eq!(seen(&taint("karpenter.sh/disrupted")), (false, true));
        assert_eq!(seen(&taint("node.kubernetes.io/memory-pressure")), (true, false));
        assert_eq!(seen(&taint("ToBeDeletedByClusterAutoscaler")), (true, true));
        assert_eq!(nodes.not_in(&["m".to_owned()].into()), ["n"]);
        assert!(nodes.gone("n") && !nodes.gone("n") && !nodes.is_leaving("n"));
    }

    #[test]
    fn a_node_matches_labels_if_it_has_all_of_them() {
        let labels = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let mut node = node(&json!({}));
        node.metadata.labels = Some(labels(&[("zone", "a"), ("disk", "ssd")]));
        let mut nodes = Nodes::default();
        assert!(nodes.seen(&node) && !nodes.seen(&node));
        for (wanted, matches) in [
            (labels(&[]), true),
            (labels(&[("zone", "a")]), true),
            (labels(&[("zone", "a"), ("disk", "ssd")]), true),
            (labels(&[("zone", "b")]), false),
            (labels(&[("zone", "a"), ("rack", "1")]), false),
        ] {
            assert_eq!(nodes.has_labels("n", &wanted), matches, "{wanted:?}");
        }
        assert!(!nodes.has_labels("m", &labels(&[("zone", "a")])));
        node.metadata.labels = None;
        assert!(nodes.seen(&node));
    }
}
