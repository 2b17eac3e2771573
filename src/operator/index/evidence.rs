//! Events that change the evidence on pods: probes, node leases, and the state of this replica's own network.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{ResourceExt as _, runtime::watcher};

use super::{
    Index, IndexedGroup, Notice, Request, Requests, connectivity::Peer, pod::TrackedPod,
    watch_health::Watched,
};
use crate::{
    health::{NodeWord, ProbeEvent, ProbeOutcome, ProbeStep, Reach},
    operator::object::GroupName,
};

/// After a pause this long in the stream of leases, the groups of all nodes are weighed again: a new observation has
/// begun, and each has new deadlines.
const LEASE_PAUSE: Duration = Duration::from_secs(10);

impl Index {
    pub(super) fn probed(&mut self, event: &ProbeEvent, now: Duration, requests: &mut Requests) {
        let Some(name) = self.placement.group_of(&event.uid) else { return };
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some(pod) = group.pods.get_mut(&event.uid) else { return };
        let mut unreached = None;
        let lost = match event.step {
            ProbeStep::Sent | ProbeStep::Waits | ProbeStep::Promised(_) => false,
            // Another replica may be able to send what this one cannot.
            ProbeStep::Ended(ProbeOutcome::Void(_)) => true,
            ProbeStep::Ended(ProbeOutcome::Unanswered) => {
                self.reach.lost(pod.node(), &event.uid, event.sent_at);
                true
            }
            ProbeStep::Ended(ProbeOutcome::Success | ProbeOutcome::Refused(_))
            | ProbeStep::Accepted
            | ProbeStep::AnsweredLate => {
                unreached = self.reach.reached(pod.node(), now);
                false
            }
        };
        let promised = pod.probed(event);
        if lost && self.reach.cuts_off(pod.node(), now) {
            pod.evidence().cut_off_until(now);
        }
        let (changed, deadline) = group.assess_pod(&event.uid, &self.leases, now);
        if changed || promised {
            self.dirty.insert(name.clone());
        }
        self.timers.at_latest(name, deadline);
        let name = name.clone();
        self.weigh_opinions(&name, &event.uid, lost, now, requests);
        if let Some(since) = unreached {
            self.reached_again(since, now);
        }
    }

    /// The evidence of probes that went elsewhere no longer counts.
    pub(super) fn retargeted(&mut self, uid: &Arc<str>, first: u64, now: Duration) {
        let Some(name) = self.placement.group_of(uid) else { return };
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some(pod) = group.pods.get_mut(uid) else { return };
        pod.evidence().retarget(first);
        if group.assess_pod(uid, &self.leases, now).0 {
            self.dirty.insert(name.clone());
        }
    }

    pub(super) fn lease_event(
        &mut self,
        event: watcher::Event<Lease>,
        now: Duration,
        requests: &mut Requests,
    ) {
        let node = match event {
            watcher::Event::Apply(lease) | watcher::Event::InitApply(lease) => {
                let renewed =
                    lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
                let node = lease.name_any();
                self.leases.seen(&node, renewed, now);
                if self.leases.of(&node).word(now) == NodeWord::Moving(now) {
                    self.node_lives(&node, now, requests);
                }
                node
            }
            watcher::Event::Delete(lease) => {
                self.leases.forget(&lease.name_any());
                lease.name_any()
            }
            watcher::Event::Init => {
                self.leases.list_begins();
                return;
            }
            watcher::Event::InitDone => {
                self.leases.list_ends(now);
                self.assess_nodes(None, now);
                return self.synced(Watched::NodeLeases, None, requests);
            }
        };
        let resumed = now.saturating_sub(self.lease_seen) >= LEASE_PAUSE;
        self.lease_seen = now;
        self.assess_nodes(Some(&node).filter(|_| !resumed).map(String::as_str), now);
    }

    /// A node has renewed its lease. If this replica reaches no pod on any other node, their silence does not count.
    fn node_lives(&mut self, node: &str, now: Duration, requests: &mut Requests) {
        let known = self.reach.cuts_off(node, now);
        if !self.reach.renewed(node, now) {
            return;
        }
        if !known {
            requests.push(Request::Log(Notice::OtherNodesUnreachable));
        }
        self.weigh_all(now, |pod, reach| {
            if reach.cuts_off(pod.node(), now) {
                pod.evidence().cut_off_until(now);
            }
        });
    }

    /// A pod on another node was reached, after none was since then. The others may work as well.
    fn reached_again(&mut self, since: Duration, now: Duration) {
        self.weigh_all(now, |pod, reach| {
            if reach.is_elsewhere(pod.node()) {
                pod.evidence().unreached_between(since, now);
            }
        });
    }

    /// Changes the evidence on all pods, and weighs it again.
    fn weigh_all(&mut self, now: Duration, change: impl Fn(&mut TrackedPod, &Reach)) {
        for (name, group) in &mut self.groups {
            group.pods.values_mut().for_each(|pod| change(pod, &self.reach));
            if group.assess(&self.leases, now) {
                self.dirty.insert(name.clone());
            }
        }
    }

    /// Weighs the evidence on the pods of a node, or of all nodes, after something was heard of its lease.
    pub(super) fn assess_nodes(&mut self, node: Option<&str>, now: Duration) {
        let Self { groups, placement, leases, dirty, timers, .. } = self;
        let mut assess = |name: &GroupName, group: &mut IndexedGroup| {
            if group.assess(leases, now) {
                dirty.insert(name.clone());
            }
            timers.at_latest(name, group.next_deadline(leases, now));
        };
        match node {
            Some(node) => {
                for name in placement.groups_on(node) {
                    if let Some(group) = groups.get_mut(&name) {
                        assess(&name, group);
                    }
                }
            }
            None => groups.iter_mut().for_each(|(name, group)| assess(name, group)),
        }
    }

    pub(super) fn api_server(&mut self, reachable: bool, now: Duration, requests: &mut Requests) {
        self.heard(Peer::ApiServer, reachable, now);
        if let Some(until) = self.lag.answered(reachable, now) {
            self.news_late_until(until, None);
        }
        if reachable {
            self.forgive_watches(now, requests);
        }
    }

    /// A peer was reached, or was not. A pod's silence does not count while this replica reaches neither of its peers,
    /// nor until it reaches one of them again.
    pub(super) fn heard(&mut self, peer: Peer, reached: bool, now: Duration) {
        if !self.connectivity.heard(peer, reached) {
            return;
        }
        self.weigh_all(now, |pod, _| pod.evidence().cut_off_until(now));
    }

    /// What the watches report on the pods of this namespace, or of all namespaces, may be old until then.
    pub(super) fn news_late_until(&mut self, until: Duration, namespace: Option<&Arc<str>>) {
        let concerned =
            self.groups.iter_mut().filter(|(name, _)| namespace.is_none_or(|one| *one == name.namespace));
        for (_, group) in concerned {
            group.pods.values_mut().for_each(|pod| pod.evidence().news_late_until(until));
        }
    }
}
