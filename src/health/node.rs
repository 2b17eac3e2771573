//! Node leases: the heartbeats of the kubelets, for pods that cannot be probed.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use jiff::Timestamp;

/// How long a lease may stay unchanged: the default that Kubernetes itself uses.
pub const LEASE_DURATION: Duration = Duration::from_secs(40);
/// How long the stream of leases may be without an event before our observation counts as interrupted: two renewals
/// of a kubelet.
const MAX_SILENT_STREAM: Duration = Duration::from_secs(20);

/// The current evidence about one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeWord {
    /// No evidence for or against it.
    Unknown,
    /// Its lease was seen to change less than [`LEASE_DURATION`] ago, at this time.
    Moving(Duration),
    /// We have looked without interruption since this time, for at least [`LEASE_DURATION`], and it did not change.
    Still(Duration),
}

/// The state of one node's lease at one point of the stream of all leases. A copy, to pass around.
///
/// The first event of a lease is no evidence *for* its node: the node may have died long ago, and a pod is promoted
/// only on fresh evidence. But it starts the time that counts *against* the node, otherwise a node that died before
/// we started would never be noticed. Only changes count, timed on our own clock; the time written in the lease is
/// never compared with any clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeLease {
    changed_at: Option<Duration>,
    looked_from: Option<Duration>,
    stream_until: Duration,
}

/// The leases of all nodes, fed from one watch of `kube-node-lease`.
///
/// One watch for all of them distinguishes a dead node from a dead watch: the renewals of other nodes show that the
/// watch is alive.
#[derive(Debug, Default)]
pub struct NodeLeases {
    stream: Option<Stream>,
    nodes: HashMap<String, Seen>,
    /// The nodes in the list that is being read, if one is.
    listed: Option<HashSet<String>>,
}

/// A period without interruption of the watch.
#[derive(Clone, Copy, Debug)]
struct Stream {
    from: Duration,
    until: Duration,
}

#[derive(Debug)]
struct Seen {
    renewed: Option<Timestamp>,
    /// When the last event arrived. A change that was missed while the stream was interrupted may be as old as the
    /// interruption.
    looked_at: Duration,
    /// The start of the time that counts against the node while no change is seen.
    counted_from: Duration,
    changed_at: Option<Duration>,
}

impl NodeLeases {
    /// The watch is certainly alive: a lease of any node, or a bookmark, has just arrived.
    pub fn alive(&mut self, now: Duration) {
        match &mut self.stream {
            Some(stream) if now < stream.until + MAX_SILENT_STREAM => stream.until = stream.until.max(now),
            stream => *stream = Some(Stream { from: now, until: now }),
        }
    }

    /// The watch was interrupted: a new observation begins.
    pub(crate) fn interrupted(&mut self) {
        self.stream = None;
    }

    /// A lease was read or arrived on the watch. `renewed` is its `renewTime`, compared only with earlier values of
    /// itself.
    pub fn seen(&mut self, node: &str, renewed: Option<Timestamp>, now: Duration) {
        self.alive(now);
        if let Some(listed) = &mut self.listed {
            listed.insert(node.to_owned());
        }
        let from = self.stream.map_or(now, |stream| stream.from);
        let Some(seen) = self.nodes.get_mut(node) else {
            let first = Seen { renewed, looked_at: now, counted_from: now, changed_at: None };
            self.nodes.insert(node.to_owned(), first);
            return;
        };
        if seen.renewed != renewed {
            // A renewal that was missed during an interruption may be as old as the interruption. It is no evidence
            // for the node now, nor against it, so the time that counts against the node starts here.
            if seen.looked_at >= from {
                seen.changed_at = Some(now);
            } else {
                seen.counted_from = now;
            }
            seen.renewed = renewed;
        }
        seen.looked_at = seen.looked_at.max(now);
    }

    /// A list of all leases begins: those that are not in it were deleted in the meantime.
    pub(crate) fn list_begins(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// The list is complete.
    pub(crate) fn list_ends(&mut self, now: Duration) {
        self.alive(now);
        if let Some(listed) = self.listed.take() {
            self.nodes.retain(|node, _| listed.contains(node));
        }
    }

    /// The lease was deleted.
    pub(crate) fn forget(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// The state of one node's lease.
    pub fn of(&self, node: &str) -> NodeLease {
        let (Some(seen), Some(stream)) = (self.nodes.get(node), self.stream) else {
            return self.nodes.get(node).map_or_else(NodeLease::default, |seen| NodeLease {
                changed_at: seen.changed_at,
                ..NodeLease::default()
            });
        };
        let last_sign = seen.changed_at.unwrap_or_default().max(seen.counted_from);
        NodeLease {
            changed_at: seen.changed_at,
            looked_from: Some(last_sign.max(stream.from)),
            stream_until: stream.until,
        }
    }
}

impl NodeLease {
    /// The evidence at `now`.
    pub fn word(&self, now: Duration) -> NodeWord {
        if let Some(changed) = self.changed_at
            && now < changed + LEASE_DURATION
        {
            return NodeWord::Moving(changed);
        }
        match self.looked_from {
            Some(from) if now >= from + LEASE_DURATION && now < self.stream_until + MAX_SILENT_STREAM => {
                NodeWord::Still(from)
            }
            _ => NodeWord::Unknown,
        }
    }

    /// Since when we have observed without interruption and seen no change.
    pub(super) fn looked_from(&self) -> Option<Duration> {
        self.looked_from
    }

    /// The times at which [`Self::word`] changes without an event.
    pub(super) fn turning_points(&self) -> impl Iterator<Item = Duration> {
        let looked =
            self.looked_from.map(|from| [from + LEASE_DURATION, self.stream_until + MAX_SILENT_STREAM]);
        self.changed_at.map(|at| at + LEASE_DURATION).into_iter().chain(looked.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn renewal(n: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH + s(n)
    }

    #[test]
    fn the_first_sight_is_no_evidence_and_the_first_change_is() {
        let mut leases = NodeLeases::default();
        leases.seen("a", Some(renewal(1)), s(0));
        assert_eq!(leases.of("a").word(s(1)), NodeWord::Unknown);
        leases.seen("a", Some(renewal(1)), s(5));
        assert_eq!(leases.of("a").word(s(5)), NodeWord::Unknown);
        leases.seen("a", Some(renewal(2)), s(10));
        assert_eq!(leases.of("a").word(s(49)), NodeWord::Moving(s(10)));
    }

    #[test]
    fn a_node_that_was_dead_before_we_came_is_noticed() {
        let mut leases = NodeLeases::default();
        leases.seen("dead", Some(renewal(1)), s(0));
        for t in (0..=40).step_by(10) {
            leases.seen("alive", Some(renewal(100 + t)), s(t));
        }
        assert_eq!(leases.of("dead").word(s(39)), NodeWord::Unknown);
        assert_eq!(leases.of("dead").word(s(40)), NodeWord::Still(s(0)));
        assert_eq!(leases.of("alive").word(s(40)), NodeWord::Moving(s(40)));
    }

    #[test]
    fn a_node_that_is_not_in_a_new_list_is_forgotten() {
        let mut leases = NodeLeases::default();
        for node in ["a", "b"] {
            leases.seen(node, Some(renewal(1)), s(0));
            leases.seen(node, Some(renewal(2)), s(10));
        }
        leases.list_begins();
        leases.seen("a", Some(renewal(2)), s(15));
        assert_eq!(leases.of("b").word(s(15)), NodeWord::Moving(s(10)), "the list is not complete");
        leases.list_ends(s(15));
        assert_eq!(leases.of("a").word(s(15)), NodeWord::Moving(s(10)));
        assert_eq!(leases.of("b").word(s(15)), NodeWord::Unknown);
        assert_eq!(leases.nodes.len(), 1);
        // Without a list nothing is forgotten.
        leases.list_ends(s(16));
        assert_eq!(leases.nodes.len(), 1);
    }

    #[test]
    fn a_broken_watch_says_nothing_against_any_node() {
        let mut leases = NodeLeases::default();
        leases.seen("a", Some(renewal(1)), s(0));
        leases.seen("a", Some(renewal(2)), s(10));
        assert_eq!(leases.of("a").word(s(60)), NodeWord::Unknown, "no lease has arrived since");
        leases.alive(s(60));
        assert_eq!(leases.of("a").word(s(60)), NodeWord::Unknown, "a new observation begins");
        leases.interrupted();
        assert_eq!(leases.of("a").word(s(61)), NodeWord::Unknown);
    }

    #[test]
    fn a_renewal_of_unknown_age_is_not_fresh() {
        let mut leases = NodeLeases::default();
        leases.seen("a", Some(renewal(1)), s(0));
        leases.interrupted();
        leases.seen("a", Some(renewal(2)), s(600));
        assert_eq!(leases.of("a").word(s(600)), NodeWord::Unknown);
        leases.seen("a", Some(renewal(3)), s(610));
        assert_eq!(leases.of("a").word(s(610)), NodeWord::Moving(s(610)));
    }
}
