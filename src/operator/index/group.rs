//! One group as it was last seen: its object, its pods, and what prevents an election.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};

use super::{
    contest::{self, Contest},
    coverage::ProbeCoverage,
    node_labels::Nodes,
    pod::{Pods, TrackedPod},
    pod_owners::Owners,
};
use crate::{
    api::{Failback, LeaderGroup, OnDemote, PlannedLoss, Reason, Role, Verdict},
    election::{AgentPolicy, HookPolicy, Member, PastChange, Policy, World},
    health::{NodeLeases, PodFacts},
    operator::{object::record::Record, trouble::Trouble},
    routing::{RoleLabelUse, stamp_of},
};

/// A group as it was last seen.
#[derive(Debug)]
pub(in crate::operator) struct IndexedGroup {
    record: Arc<Record>,
    pub(super) pods: Pods,
    /// The pods that other groups select, too, whether they count as pods of this group or of another one.
    contests: BTreeMap<Arc<str>, Contest>,
    owners: Owners,
    /// What is wrong with the spec.
    invalid: Option<String>,
    /// Why the present version of the object cannot be decoded. Everything else here is from an earlier version.
    pub(super) undecodable: Option<String>,
    /// When the deletion was first seen.
    deleted_at: Option<Duration>,
    /// The changes of holder in the status' history, without releases: these have the token of the term that they end.
    history: Arc<[PastChange]>,
    /// The UID of the holder, whose evidence is weighed more strictly than a candidate's.
    holder: Option<String>,
}

impl IndexedGroup {
    pub(in crate::operator) fn new(record: Record, now: Duration) -> Self {
        let mut group = Self {
            record: Arc::new(record),
            pods: Pods::new(),
            contests: BTreeMap::new(),
            owners: Owners::default(),
            invalid: None,
            undecodable: None,
            deleted_at: None,
            history: Arc::default(),
            holder: None,
        };
        group.holder = group.record.declared().holder.map(|pod| pod.uid);
        group.take_in(now);
        group
    }

    /// A newer version of the object.
    pub(super) fn update(&mut self, object: LeaderGroup, now: Duration) {
        self.record = Arc::new(self.record.newer(object));
        self.undecodable = None;
        self.take_in(now);
    }

    fn take_in(&mut self, now: Duration) {
        self.invalid = self.record.object.spec.validate().err().map(|invalid| invalid.to_string());
        self.history = past_changes(&self.record);
        self.deleted_at = self.record.is_deleting().then(|| self.deleted_at.unwrap_or(now));
        self.pods.values_mut().for_each(|pod| pod.measure_by(&self.record));
    }

    /// A newer version of the object cannot be decoded.
    pub(super) fn cannot_decode(&mut self, version: Option<String>, problem: String) {
        let mut object = self.record.object.clone();
        // A version that was read before this one must not pass for a newer one.
        object.metadata.resource_version = version;
        self.record = Arc::new(self.record.newer(object));
        self.undecodable = Some(problem);
    }

    pub(in crate::operator) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    pub(in crate::operator) fn invalid(&self) -> Option<&str> {
        self.invalid.as_deref()
    }

    pub(in crate::operator) fn is_undecodable(&self) -> bool {
        self.undecodable.is_some()
    }

    /// The facts about each pod, and how the election sees it.
    pub(in crate::operator) fn pods(&self) -> impl Iterator<Item = (&PodFacts, Member)> {
        self.pods.iter().map(|(uid, pod)| (pod.facts(), self.member(uid, pod)))
    }

    /// A pod as the election sees it. One that other groups select, too, becomes active for none; one that is active
    /// for this group stays so.
    fn member(&self, uid: &str, pod: &TrackedPod) -> Member {
        let member = pod.member().clone();
        let stays = member.role == Role::Active && member.stamped_by_us;
        if member.verdict == Verdict::Eligible && !stays && self.contests.contains_key(uid) {
            return Member { verdict: Verdict::Contested, ..member };
        }
        member
    }

    /// The facts about one of the pods.
    pub(in crate::operator) fn pod(&self, uid: &str) -> Option<&PodFacts> {
        self.pods.get(uid).map(|pod| pod.facts())
    }

    /// How far the group's pods can be probed.
    pub(in crate::operator) fn coverage(&self) -> ProbeCoverage {
        ProbeCoverage::of(self.pods.values().map(|pod| (pod.facts(), pod.hindrance())))
    }

    /// An owner of the group's pods that sets the role label on them.
    pub(in crate::operator) fn role_label_use(&self) -> Option<&RoleLabelUse> {
        self.owners.role_label_use()
    }

    /// Which pods other groups select, too, and what follows; `None` if there are none.
    pub(in crate::operator) fn contested(&self) -> Option<String> {
        contest::words(self.contests.values())
    }

    /// How long ago the deletion of the group was first seen; zero if it is not being deleted.
    pub(super) fn deleting_for(&self, now: Duration) -> Duration {
        self.deleted_at.map_or(Duration::ZERO, |deleted_at| now.saturating_sub(deleted_at))
    }

    /// A version of one of the group's pods. Returns whether the group has to be looked at, and the owner that has to
    /// be read.
    pub(super) fn pod_seen(
        &mut self,
        uid: &Arc<str>,
        pod: &Pod,
        leases: &NodeLeases,
        now: Duration,
    ) -> (bool, Option<OwnerReference>) {
        let mut changed = true;
        if let Some(known) = self.pods.get_mut(uid) {
            changed = known.update(pod, &self.record, now);
        } else {
            self.pods.insert(uid.clone(), Box::new(TrackedPod::new(pod, &self.record, now)));
        }
        if let Some(known) = self.pods.get_mut(uid) {
            changed |= known.assess(self.holder.as_deref(), leases, now);
        }
        let owner = self.owners.pod_seen(pod, &self.record.reference.marks);
        // No pod is promoted before the first answer arrives.
        (changed || owner.is_some(), owner)
    }

    /// Whether another group selects this pod, too.
    pub(super) fn is_contested(&self, uid: &str) -> bool {
        self.contests.contains_key(uid)
    }

    /// Other groups select a pod of this one, too, or no longer do. Returns whether that is new.
    pub(super) fn pod_contested(&mut self, uid: &Arc<str>, contest: Option<Contest>) -> bool {
        if self.contests.get(uid) == contest.as_ref() {
            return false;
        }
        match contest {
            Some(contest) => self.contests.insert(uid.clone(), contest),
            None => self.contests.remove(uid),
        };
        true
    }

    /// Whether a pod is active by this group's doing.
    pub(super) fn has_made_active(&self, pod: &Pod) -> bool {
        self.reads_as_active(pod) && stamp_of(pod).is_some_and(|stamp| *stamp.group == *self.record.uid)
    }

    /// Whether the label of a pod says that it is active.
    pub(super) fn reads_as_active(&self, pod: &Pod) -> bool {
        self.record.reference.marks.role(pod) == Role::Active
    }

    /// The pod is gone, or the group no longer selects it.
    pub(super) fn pod_gone(&mut self, uid: &str) {
        self.owners.pod_gone(uid);
        self.contests.remove(uid);
        self.pods.remove(uid);
    }

    /// An owner of pods was read.
    pub(super) fn owner_read(
        &mut self,
        owner: &OwnerReference,
        found: Result<Option<RoleLabelUse>, Trouble>,
    ) {
        self.owners.answered(owner, found);
    }

    /// Weighs the evidence on one pod after something happened to it. Returns whether its verdict changed, and when it
    /// may change next although nothing happens.
    pub(super) fn assess_pod(
        &mut self,
        uid: &str,
        leases: &NodeLeases,
        now: Duration,
    ) -> (bool, Option<Duration>) {
        let holder = self.holder.as_deref();
        let Some(pod) = self.pods.get_mut(uid) else { return (false, None) };
        (pod.assess(holder, leases, now), pod.next_deadline(leases, now))
    }

    /// Weighs the evidence on all pods. Returns whether any verdict changed.
    pub(super) fn assess(&mut self, leases: &NodeLeases, now: Duration) -> bool {
        let holder = self.holder.as_deref();
        self.pods.values_mut().fold(false, |changed, pod| pod.assess(holder, leases, now) | changed)
    }

    /// When a verdict may change although nothing happens.
    pub(super) fn next_deadline(&self, leases: &NodeLeases, now: Duration) -> Option<Duration> {
        self.pods.values().filter_map(|pod| pod.next_deadline(leases, now)).min()
    }

    pub(super) fn set_holder(&mut self, holder: Option<&str>) {
        if self.holder.as_deref() != holder {
            self.holder = holder.map(str::to_owned);
        }
    }

    /// Whether this pod's evidence is weighed as the holder's.
    pub(super) fn is_holder(&self, uid: &str) -> bool {
        self.holder.as_deref() == Some(uid)
    }

    /// The UID of the pod that the status declares as the holder.
    pub(super) fn declared_holder(&self) -> Option<&str> {
        let holder = self.record.status()?.declaration.holder.as_ref()?;
        Some(&holder.uid)
    }

    /// The world as the election sees it, with the verdicts as they were last weighed.
    /// `nodes_listed`: there is no failback by labels of nodes until the nodes are listed.
    pub(super) fn world(&self, lock_away: bool, nodes: &Nodes, nodes_listed: bool) -> World {
        let spec = &self.record.object.spec;
        let by_nodes = spec.election.priorities.iter().any(|priority| !priority.node_labels.is_empty());
        let fails_back = spec.election.failback == Failback::WhenReady && (nodes_listed || !by_nodes);
        let hands_over = spec.election.on_cordon == PlannedLoss::Handover;
        let member = |uid: &str, pod: &TrackedPod| {
            let leaving = hands_over && nodes.is_leaving(pod.node());
            Member { leaving, priority: pod.priority(&spec.election, nodes), ..self.member(uid, pod) }
        };
        World {
            members: self.pods.iter().map(|(uid, pod)| member(uid, pod)).collect(),
            policy: Policy {
                delay: spec.election.delay.0,
                paused: spec.paused,
                failback: fails_back.then_some(spec.election.failback_delay.0),
                leaves_before_rollout: spec.election.on_rollout == PlannedLoss::Handover,
                deletes_demoted: spec.election.on_demote == OnDemote::Delete,
                deletion_policy: spec.deletion_policy,
                agent: spec.agent.as_ref().map(|agent| AgentPolicy {
                    lease: agent.lease_duration.0,
                    stop_timeout: agent.stop_timeout.0,
                }),
                hooks: spec.hooks.as_ref().map_or_else(HookPolicy::default, |hooks| HookPolicy {
                    promote: hooks.promote.as_ref().map(|hook| hook.on_failure),
                    demote: hooks.demote.as_ref().map(|hook| hook.on_failure),
                }),
            },
            declared: self.record.declared(),
            history: self.history.clone(),
            obstacle: self.obstacle(),
            switchover: self.record.requested_switchover(),
            deleting: self.record.is_deleting(),
            lock_away,
            stopping: false,
        }
    }

    /// Why no pod of this group may be promoted.
    pub(in crate::operator) fn obstacle(&self) -> Option<Reason> {
        if self.invalid.is_some() || self.undecodable.is_some() {
            Some(Reason::InvalidSpec)
        } else if self.contests.values().any(|contest| contest.is_active_elsewhere) {
            // A Service that selects by this group's labels would have two endpoints.
            Some(Reason::SelectedByOtherGroup)
        } else if self.role_label_use().is_some_and(|found| found.selects) {
            Some(Reason::RoleLabelInOwnerSelector)
        } else if self.owners.asking() {
            Some(Reason::Pending)
        } else {
            None
        }
    }
}

fn past_changes(record: &Record) -> Arc<[PastChange]> {
    let entries = record.status().map_or(&[][..], |status| &status.history);
    let changes = entries.iter().filter(|entry| entry.to.is_some()).map(|entry| {
        let is_failure = Reason::of_change(&entry.reason).is_some_and(Reason::is_failure);
        let failed = entry.from.clone().filter(|_| is_failure && entry.from != entry.to);
        PastChange { token: entry.token, failed }
    });
    changes.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operator::object::GroupName;

    #[test]
    fn a_deletion_counts_from_when_it_was_seen_and_not_from_when_it_is_asked_about() {
        let at = Duration::from_secs;
        let object = |deleted: Option<&str>| -> LeaderGroup {
            let object = json!({ "metadata": { "name": "web", "namespace": "shop", "uid": "u1", "deletionTimestamp": deleted },
                "spec": { "selector": { "matchLabels": { "app": "web" } } } });
            serde_json::from_value(object).expect("a group")
        };
        let deleted = || object(Some("2026-01-01T00:00:00Z"));
        let new = |object, now| {
            let name = GroupName { namespace: "shop".into(), name: "web".into() };
            IndexedGroup::new(Record::first(object, name, "c1").expect("it has a name"), now)
        };
        let mut group = new(object(None), at(1));
        assert_eq!(group.deleting_for(at(20)), Duration::ZERO);
        group.update(deleted(), at(30));
        group.update(deleted(), at(35));
        assert_eq!(group.deleting_for(at(40)), at(10));
        assert_eq!(new(deleted(), at(50)).deleting_for(at(53)), at(3));
    }
}
