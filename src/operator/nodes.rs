//! Nodes that are about to be emptied.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

/// The taints by which autoscalers announce that they will remove a node: the Cluster Autoscaler, and Karpenter from
/// version 1 and before.
const REMOVAL_TAINTS: [&str; 3] =
    ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"];

/// The nodes that are about to be emptied.
#[derive(Debug, Default)]
pub(super) struct LeavingNodes(BTreeSet<String>);

impl LeavingNodes {
    /// A node was seen. Returns whether it is about to be emptied since then, or no longer is.
    pub(super) fn seen(&mut self, node: &Node) -> bool {
        let name = node.name_any();
        if is_leaving(node) { self.0.insert(name) } else { self.0.remove(&name) }
    }

    /// A node is gone. Returns whether it was about to be emptied.
    pub(super) fn gone(&mut self, node: &str) -> bool {
        self.0.remove(node)
    }

    pub(super) fn contains(&self, node: &str) -> bool {
        self.0.contains(node)
    }

    /// Those that are not among these nodes, which are all that exist.
    pub(super) fn not_in(&self, nodes: &BTreeSet<String>) -> Vec<String> {
        self.0.difference(nodes).cloned().collect()
    }
}

/// Whether the node is cordoned, as `kubectl drain` does first, or an autoscaler is about to remove it.
fn is_leaving(node: &Node) -> bool {
    let Some(spec) = &node.spec else { return false };
    spec.unschedulable == Some(true)
        || spec.taints.iter().flatten().any(|taint| REMOVAL_TAINTS.contains(&taint.key.as_str()))
}

/// Removes the parts of a node that the operator never reads.
pub(super) fn trim(node: &mut Node) {
    node.status = None;
    (node.metadata.annotations, node.metadata.labels) = (None, None);
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
        let mut nodes = LeavingNodes::default();
        let mut seen = |spec: &Value| (nodes.seen(&node(spec)), nodes.contains("n"));
        assert_eq!(seen(&json!({})), (false, false));
        assert_eq!(seen(&json!({ "unschedulable": true })), (true, true));
        assert_eq!(seen(&taint("karpenter.sh/disrupted")), (false, true));
        assert_eq!(seen(&taint("node.kubernetes.io/memory-pressure")), (true, false));
        assert_eq!(seen(&taint("ToBeDeletedByClusterAutoscaler")), (true, true));
        assert_eq!(nodes.not_in(&["m".to_owned()].into()), ["n"]);
        assert!(nodes.gone("n") && !nodes.gone("n"));
    }
}
