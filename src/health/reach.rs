//! Whether this replica reaches pods on other nodes than its own. If it does not, while these nodes renew their leases,
//! the fault is between the nodes, and most likely on this side.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How long after the first lost probe a renewal of a lease proves that its node is alive. The watch may report one
/// from before with a delay.
const WATCH_DELAY: Duration = Duration::from_secs(2);
/// For how long a renewal proves it: kubelets renew their leases every 10 s.
const RENEWAL: Duration = Duration::from_secs(12);
/// A single pod that cannot be reached may be at fault itself.
const LEAST_PODS: usize = 2;

/// What the probes tell of the network between this node and the others.
///
/// A pod is reached if its node's kernel answers, even with a refusal, and even if the program hangs.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// The node of this replica; without it, nothing is concluded.
    own: Option<String>,
    reached_at: Option<Duration>,
    lost: Option<Lost>,
}

/// No pod on another node has been reached since.
#[derive(Clone, Debug)]
struct Lost {
    /// When the first of the lost probes was sent.
    since: Duration,
    /// The nodes whose pods were probed in vain.
    nodes: BTreeSet<String>,
    /// Some of these pods, as many as are needed.
    pods: BTreeSet<Arc<str>>,
    /// When the lease of one of these nodes was last renewed.
    renewed_at: Option<Duration>,
}

impl Reach {
    /// For a replica on this node.
    pub fn of(own: Option<String>) -> Self {
        Self { own, ..Self::default() }
    }

    /// A pod on this node was reached. Returns since when none on another node was, this node among them, if there were
    /// several to reach.
    pub fn reached(&mut self, node: &str, now: Duration) -> Option<Duration> {
        if !self.is_elsewhere(node) {
            return None;
        }
        self.reached_at = Some(now);
        let lost = self.lost.take().filter(|lost| lost.nodes.contains(node) && lost.pods.len() >= LEAST_PODS);
        lost.map(|lost| lost.since)
    }

    /// A probe of a pod on this node reached nobody.
    pub fn lost(&mut self, node: &str, pod: &Arc<str>, sent_at: Duration) {
        if !self.is_elsewhere(node) || self.reached_at.is_some_and(|reached_at| sent_at <= reached_at) {
            return;
        }
        let new = || Lost { since: sent_at, nodes: BTreeSet::new(), pods: BTreeSet::new(), renewed_at: None };
        let lost = self.lost.get_or_insert_with(new);
        lost.since = lost.since.min(sent_at);
        if !lost.nodes.contains(node) {
            lost.nodes.insert(node.to_owned());
        }
        if lost.pods.len() < LEAST_PODS {
            lost.pods.insert(pod.clone());
        }
    }

    /// The lease of this node was renewed. Returns whether it shows that this replica is cut off from the other nodes.
    pub fn renewed(&mut self, node: &str, now: Duration) -> bool {
        if let Some(lost) = &mut self.lost
            && lost.nodes.contains(node)
            && now >= lost.since + WATCH_DELAY
        {
            lost.renewed_at = Some(now);
            return self.is_cut_off(now);
        }
        false
    }

    /// Whether the silence of pods on this node says nothing about them at `now`.
    pub fn cuts_off(&self, node: &str, now: Duration) -> bool {
        self.is_elsewhere(node) && self.is_cut_off(now)
    }

    fn is_cut_off(&self, now: Duration) -> bool {
        let Some(lost) = &self.lost else { return false };
        let alive = lost.renewed_at.is_some_and(|renewed_at| now < renewed_at + RENEWAL);
        alive && lost.pods.len() >= LEAST_PODS
    }

    /// Whether this is the node of another pod than those beside this replica.
    pub fn is_elsewhere(&self, node: &str) -> bool {
        !node.is_empty() && self.own.as_ref().is_some_and(|own| own != node)
    }
}
