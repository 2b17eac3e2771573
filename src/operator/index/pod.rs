//! One pod of a group: what the API server says of it, the evidence, and what the election sees of both.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::ResourceExt as _;

use super::node_labels::Nodes;
use crate::{
    api::{Boot, ElectionSpec, HoldConnection, LeaderGroupSpec, PodRef, Promise, Verdict},
    election::{Member, Workload},
    health::{self, NodeLeases, PodEvidence, PodFacts, ProbeEvent, ProbeStep, Target, Thresholds, VoidCause},
    operator::object::record::Record,
    routing::{has_its_fencing_token, stamp_of},
};

/// A pod of a group.
#[derive(Debug)]
pub(super) struct TrackedPod {
    facts: PodFacts,
    evidence: PodEvidence,
    member: Member,
    /// Why this replica cannot judge the pod.
    hindrance: Option<VoidCause>,
    /// Which of the priorities match the pod's own labels, a bit for each.
    prioritized: u16,
    /// The last probe that its agent has answered.
    promised_by: u64,
    /// The last starts of its agent that have answered. Only of these the kubelet's word is taken that they have ended:
    /// a program can hand the message that its agent has signed to another pod.
    answered: Vec<Boot>,
}

impl TrackedPod {
    pub(super) fn new(pod: &Pod, record: &Record, now: Duration) -> Self {
        let facts = PodFacts::from_pod(pod, &record.object.spec);
        let mut evidence = PodEvidence::new(thresholds(&facts, record));
        evidence.kubelet(&facts, now);
        let prioritized = prioritized(pod, &record.object.spec.election);
        let member = member(pod, &facts, record);
        let answered = Vec::new();
        Self { member, facts, evidence, hindrance: None, prioritized, promised_by: 0, answered }
    }

    /// Takes a newer version of the pod in. Returns whether it differs in anything but its version.
    pub(super) fn update(&mut self, pod: &Pod, record: &Record, now: Duration) -> bool {
        let facts = PodFacts::from_pod(pod, &record.object.spec);
        self.evidence.set_thresholds(thresholds(&facts, record));
        self.evidence.kubelet(&facts, now);
        let Member { verdict, agent, asked_at, silent_since, .. } = self.member;
        let ended = self.ended(&facts);
        let member = Member { verdict, agent, asked_at, silent_since, ended, ..member(pod, &facts, record) };
        // The next world has the new version; nothing is decided because of it.
        self.facts.resource_version.clone_from(&facts.resource_version);
        self.member.version.clone_from(&member.version);
        let prioritized = prioritized(pod, &record.object.spec.election);
        let changed = self.facts != facts || self.member != member || self.prioritized != prioritized;
        (self.facts, self.member, self.prioritized) = (facts, member, prioritized);
        changed
    }

    /// The group's spec changed.
    pub(super) fn measure_by(&mut self, record: &Record) {
        self.evidence.set_thresholds(thresholds(&self.facts, record));
    }

    /// Takes in what a probe did. Returns whether the pod's agent has promised something new.
    pub(super) fn probed(&mut self, event: &ProbeEvent) -> bool {
        match event.step {
            ProbeStep::Promised(promise) => return self.promised(event, promise),
            ProbeStep::Sent | ProbeStep::Waits => self.evidence.probe_sent(event.seq, event.sent_at),
            ProbeStep::Ended(outcome) => self.evidence.probe_answered(event.seq, event.sent_at, outcome),
            ProbeStep::Accepted => {}
            ProbeStep::AnsweredLate => self.evidence.probe_answered_late(event.seq, event.sent_at),
        }
        false
    }

    /// Answers may come in another order than their probes: an agent that was started again is not taken for the former
    /// one.
    fn promised(&mut self, event: &ProbeEvent, promise: Promise) -> bool {
        let before = self.member.agent;
        match &mut self.member.agent {
            Some(known) if known.boot == promise.boot || event.seq > self.promised_by => known.add(promise),
            Some(_) => return false,
            none => *none = Some(promise.into()),
        }
        self.promised_by = self.promised_by.max(event.seq);
        self.member.asked_at = self.member.asked_at.max(Some(event.sent_at));
        if !self.answered.contains(&promise.boot) {
            self.answered.truncate(MOST_STARTS - 1);
            self.answered.insert(0, promise.boot);
            self.member.ended = self.ended(&self.facts);
        }
        self.member.agent != before
    }

    fn ended(&self, facts: &PodFacts) -> Vec<Boot> {
        facts.ended_agents.iter().filter(|boot| self.answered.contains(boot)).copied().collect()
    }

    pub(super) fn evidence(&mut self) -> &mut PodEvidence {
        &mut self.evidence
    }

    /// Weighs the evidence. Returns whether the pod's verdict changed, or whether this replica can judge it.
    pub(super) fn assess(&mut self, holder: Option<&str>, leases: &NodeLeases, now: Duration) -> bool {
        let judged_as = if holder == Some(self.facts.uid.as_str()) {
            health::JudgedAs::Holder
        } else {
            health::JudgedAs::Candidate
        };
        let lease = leases.of(self.node());
        let after = self.evidence.verdict(judged_as, &lease, now);
        let silent_since = || self.evidence.silent_since(&lease, now);
        self.member.silent_since = (after == Verdict::Silent).then(silent_since).flatten();
        let hindrance = self.evidence.hindrance(now);
        let before = std::mem::replace(&mut self.hindrance, hindrance);
        (std::mem::replace(&mut self.member.verdict, after), before) != (after, hindrance)
    }

    /// Why this replica cannot judge the pod.
    pub(super) fn hindrance(&self) -> Option<VoidCause> {
        self.hindrance
    }

    /// Whether it may work although this replica does not hear it.
    pub(super) fn is_missed(&self, cut_off: bool, now: Duration) -> bool {
        let unheard = matches!(self.member.verdict, Verdict::Unknown | Verdict::Silent);
        unheard && self.facts.target().is_some() && self.evidence.is_missed(cut_off, now)
    }

    /// Whether it has not answered this replica's last probe.
    pub(super) fn is_unheard(&self) -> bool {
        self.evidence.is_unheard()
    }

    /// When the verdict may change although nothing happens.
    pub(super) fn next_deadline(&self, leases: &NodeLeases, now: Duration) -> Option<Duration> {
        self.evidence.next_deadline(&leases.of(self.node()), now)
    }

    /// The pod's priority: the sum of the weights that match it and its node.
    pub(super) fn priority(&self, election: &ElectionSpec, nodes: &Nodes) -> u32 {
        let of_pod = |at: usize| self.prioritized & (1 << at) != 0;
        let matching = election.priorities.iter().take(MOST_PRIORITIES).enumerate();
        let matching =
            matching.filter(|(at, it)| of_pod(*at) && nodes.has_labels(self.node(), &it.node_labels));
        matching.map(|(_, it)| it.weight).sum()
    }

    pub(super) fn node(&self) -> &str {
        self.facts.node.as_deref().unwrap_or_default()
    }

    pub(in crate::operator) fn facts(&self) -> &PodFacts {
        &self.facts
    }

    pub(in crate::operator) fn member(&self) -> &Member {
        &self.member
    }

    /// What to probe, and how often, if the pod can be probed at all.
    pub(super) fn target(
        &self,
        spec: &LeaderGroupSpec,
        is_holder: bool,
        hold: HoldConnection,
    ) -> Option<Target> {
        let (ip, probe) = self.facts.target().filter(|_| !self.facts.finished())?;
        Some(Target {
            ip,
            probe: probe.clone(),
            interval: spec.health.interval.0,
            listen: spec.health.silence_timeout.0,
            hold,
            threshold: spec.health.failure_threshold,
            is_holder,
        })
    }
}

/// How many starts of a pod's agent are remembered. The kubelet reports the last two ends.
const MOST_STARTS: usize = 4;
/// The most priorities of a group.
const MOST_PRIORITIES: usize = 16;

/// Which of the priorities match the pod's own labels.
fn prioritized(pod: &Pod, election: &ElectionSpec) -> u16 {
    let has = |(key, value): (&String, &String)| pod.labels().get(key) == Some(value);
    let priorities = election.priorities.iter().take(MOST_PRIORITIES).enumerate();
    let matching = priorities.filter(|(_, it)| it.pod_labels.iter().all(has));
    matching.fold(0, |bits, (at, _)| bits | 1 << at)
}

fn thresholds(facts: &PodFacts, record: &Record) -> Thresholds {
    let probe = facts.probe.as_ref().ok().and_then(Option::as_ref);
    Thresholds::of(&record.object.spec, probe.map(|probe| probe.timeout))
}

fn member(pod: &Pod, facts: &PodFacts, record: &Record) -> Member {
    let (stamp, role) = (stamp_of(pod), record.reference.marks.role(pod));
    Member {
        pod: PodRef { name: facts.name.clone(), uid: facts.uid.clone() },
        node: facts.node.clone(),
        version: facts.resource_version.clone(),
        role,
        stamp: stamp.as_ref().map(|stamp| stamp.token),
        stamped_by_us: stamp.is_some_and(|stamp| *stamp.group == *record.uid),
        leaving: false,
        priority: 0,
        fencing_fits: has_its_fencing_token(pod, role, record.key.as_str()),
        verdict: Verdict::Unknown,
        agent: None,
        asked_at: None,
        silent_since: None,
        restarts: facts.restarts.as_ref().map_or(0, |restarts| restarts.count),
        ended: Vec::new(),
        created: facts.created.map_or(i64::MAX, jiff::Timestamp::as_second),
        revision: revision(pod),
        workload: workload(pod),
    }
}

/// What replaces the pod in a rollout. A Deployment has a `ReplicaSet` for each template, which is named after it.
fn workload(pod: &Pod) -> Option<Workload> {
    let is_controller = |owner: &&OwnerReference| owner.controller == Some(true);
    let controller = pod.owner_references().iter().find(is_controller)?;
    if !controller.api_version.starts_with("apps/") {
        return None;
    }
    let name = match controller.kind.as_str() {
        "ReplicaSet" => {
            let hash = pod.labels().get("pod-template-hash")?;
            controller.name.strip_suffix(hash.as_str())?.strip_suffix('-')?
        }
        "StatefulSet" | "DaemonSet" => controller.uid.as_str(),
        _ => return None,
    };
    let number = || pod.metadata.name.as_ref()?.rsplit('-').next()?.parse().ok();
    let ordinal = if controller.kind == "StatefulSet" { number() } else { None };
    Some(Workload { name: name.into(), ordinal })
}

/// The template that the pod was made from: the label that a Deployment sets, or the one that a `StatefulSet` or a
/// `DaemonSet` sets. Other controllers often use a `ReplicaSet` for each template, so the controller stands for it.
fn revision(pod: &Pod) -> Option<Arc<str>> {
    let label =
        ["pod-template-hash", "controller-revision-hash"].iter().find_map(|key| pod.labels().get(*key));
    let controller = || pod.owner_references().iter().find(|owner| owner.controller == Some(true));
    label.map(String::as_str).or_else(|| Some(controller()?.uid.as_str())).map(Arc::from)
}

/// The pods of a group, by UID. Boxed: a node of the map has room for eleven entries, and most groups have three.
pub(super) type Pods = std::collections::BTreeMap<Arc<str>, Box<TrackedPod>>;
