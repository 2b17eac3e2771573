//! I5: which pods may be replaced because of a fault.
//!
//! A path between two nodes is no excuse as long as a replica on another path hears the pod: its owner asks the deputy
//! before it decides. With two replicas each is the other's deputy.

use super::{Concerns, Kind, Plan, Target, Targets};

impl Plan {
    /// The UIDs of the pods that may be replaced because of it, while `beside` is disturbed, too.
    pub fn excused(&self, targets: &Targets, beside: Option<&Self>) -> Vec<String> {
        let disturbed = self.disturbed(targets);
        let others_may_hear = targets.replicas.len() == 2 && !beside.is_some_and(Self::disturbs_the_operator);
        if self.kind.concerns() != Concerns::TwoNodes || !others_may_hear {
            return disturbed;
        }
        let of = targets.pods.iter().filter(|pod| disturbed.contains(&pod.uid));
        let unheard =
            of.filter(|pod| !targets.replicas.iter().any(|replica| self.lets_hear(&replica.node, pod)));
        unheard.map(|pod| pod.uid.clone()).collect()
    }

    /// Whether replicas may not hear pods, or not from each other, because of it.
    fn disturbs_the_operator(&self) -> bool {
        let is_of_pods = matches!(self.kind.concerns(), Concerns::Pod | Concerns::Group);
        !is_of_pods && !matches!(self.kind, Kind::NodeCordoned | Kind::ProxyPaused)
    }

    /// Whether a cut path is not the one from a node to a pod.
    fn lets_hear(&self, node: &String, pod: &Target) -> bool {
        *node == pod.node || !(self.nodes.contains(node) && self.nodes.contains(&pod.node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_faults::Replica;

    fn targets(replicas: &[&str]) -> Targets {
        let pod = |uid: &str, node: &str| Target {
            uid: uid.into(),
            name: uid.into(),
            node: node.into(),
            group: "a".into(),
            active: true,
            works: true,
        };
        let replica =
            |node: &&str| Replica { uid: (*node).into(), name: (*node).into(), node: (*node).into() };
        Targets {
            nodes: ["n1", "n2", "n3"].map(String::from).to_vec(),
            pods: vec![pod("a1", "n1"), pod("a2", "n2"), pod("a3", "n3")],
            replicas: replicas.iter().map(replica).collect(),
        }
    }

    fn plan(kind: Kind, nodes: &[&str]) -> Plan {
        Plan { kind, nodes: nodes.iter().map(|&node| node.into()).collect(), pod: None, replica: None }
    }

    #[test]
    fn a_cut_path_is_no_excuse_while_a_replica_hears_the_pod() {
        let cut = plan(Kind::NodeFromNode, &["n1", "n2"]);
        assert!(cut.excused(&targets(&["n1", "n3"]), None).is_empty(), "the one on n3 hears both");
        assert!(cut.excused(&targets(&["n1", "n2"]), None).is_empty(), "each hears its own node's");
        assert_eq!(cut.excused(&targets(&["n1", "n1"]), None), ["a2"], "both are on the same side");
        let one_way = plan(Kind::NodeToNode, &["n2", "n1"]);
        assert_eq!(one_way.excused(&targets(&["n2", "n2"]), None), ["a1"]);
        assert_eq!(one_way.excused(&targets(&["n3"]), None), ["a1", "a2"], "there is no deputy");
    }

    #[test]
    fn it_is_one_while_replicas_or_what_they_need_are_disturbed_too() {
        let cut = plan(Kind::NodeFromNode, &["n1", "n2"]);
        let excused = |kind, nodes: &[&str]| cut.excused(&targets(&["n1", "n3"]), Some(&plan(kind, nodes)));
        for kind in
            [Kind::ReplicaPaused, Kind::DatabaseStopped, Kind::ApiServerKilled, Kind::OperatorUpgraded]
        {
            assert_eq!(excused(kind, &[]), ["a1", "a2"], "{kind:?}");
        }
        assert_eq!(excused(Kind::NodeFrozen, &["n3"]), ["a1", "a2"]);
        assert!(excused(Kind::ProxyPaused, &["n3"]).is_empty());
        assert!(excused(Kind::PodKilled, &[]).is_empty());
    }

    #[test]
    fn other_faults_excuse_the_pods_that_they_disturb() {
        assert_eq!(plan(Kind::NodeCutOff, &["n1"]).excused(&targets(&["n2", "n3"]), None), ["a1"]);
        assert!(plan(Kind::ProxyPaused, &["n1"]).excused(&targets(&["n2"]), None).is_empty());
    }
}
