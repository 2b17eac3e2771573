//! One group as the loop keeps it: the object, its pods' evidence, the election's state, and who is in charge.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::{
    message::{GroupName, Trouble},
    owner_selector::Owners,
};
use crate::{
    api::{Declaration, HistoryEntry, LeaderGroup, LeaderGroupStatus, PodRef, Reason, RoutingSpec},
    election::{self, Member, Policy, World},
    health::{self, NodeLeases, PodEvidence, PodFacts, Prober, Target, Thresholds, Verdict},
    routing::{GroupRef, Marks, stamp_of},
};
use leadergroup_lock::{Key, SessionId};

/// Who is in charge of a group, as far as this replica knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// Not known, or nobody: to be claimed.
    Open,
    /// A claim is on its way.
    Claiming,
    /// This replica.
    Ours,
    /// Another replica's session.
    Other(SessionId),
    /// The lock's row belongs to another group; this says to whom.
    Foreign(String),
}

/// Which pods of a group this replica probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probing {
    /// In charge, or about to be.
    All,
    /// The deputy: the holder only, so that no silence starts anew when the replica in charge dies with it.
    Holder,
    /// Another replica does.
    None,
}

/// A pod of the group.
#[derive(Debug)]
pub(super) struct Tracked {
    uid: Arc<str>,
    pub(super) facts: PodFacts,
    evidence: PodEvidence,
    member: Member,
}

/// A group.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: GroupName,
    pub(super) uid: Arc<str>,
    pub(super) group: GroupRef,
    pub(super) object: Arc<LeaderGroup>,
    pub(super) key: Key,
    pub(super) tag: String,
    pub(super) machine: election::Group,
    pub(super) charge: Charge,
    /// A heartbeat came since the last look: a group without a known charge may be claimed.
    pub(super) claim_due: bool,
    /// The other session that was in charge, if it may have given the group up.
    pub(super) doubted: Option<SessionId>,
    /// When the claim may be made again.
    pub(super) claim_after: Duration,
    /// Consecutive heartbeats at which nobody was in charge.
    pub(super) open_beats: u32,
    pub(super) tracked: BTreeMap<Arc<str>, Tracked>,
    /// Pods that an older group selects too, and that group.
    pub(super) contested: BTreeMap<String, String>,
    /// Owners of pods that may select them by the role label.
    pub(super) owners: Owners,
    /// What the spec got wrong.
    pub(super) invalid: Option<String>,
    /// Why the object, as it is now, cannot be read: all else here is of before.
    pub(super) unreadable: Option<String>,
    /// The last failure of an effect, until one succeeds.
    pub(super) trouble: Option<Trouble>,
    pub(super) history: Vec<HistoryEntry>,
    pub(super) reporting: bool,
    pub(super) report_after: Duration,
    /// While a change of holder is under way and may soon be over.
    pub(super) quiet_until: Option<Duration>,
    /// What keeps all groups from being worked for was reported by a replica that is not in charge; once is enough.
    pub(super) hindrance_reported: bool,
    /// The last failure of a report, and of stamping standbys: each is logged once.
    pub(super) report_trouble: Option<Trouble>,
    pub(super) stamp_trouble: Option<Trouble>,
    /// When this replica was put in charge.
    pub(super) charged_at: Duration,
    /// When the deletion was first seen.
    deleted_at: Option<Duration>,
}

impl Entry {
    /// A group just seen; none for an object without name, namespace or UID, which no API server sends, and for one whose
    /// lock's key cannot be used.
    pub(super) fn new(object: LeaderGroup, name: GroupName, cluster: &str, now: Duration) -> Option<Self> {
        let group = GroupRef::of(&object)?;
        let default_key = Key::new(format!("{cluster}/{}/{}", group.namespace, group.name));
        let key = match object.spec.lock.key.clone().map(Key::new) {
            // It never had a row, and is not kept from going.
            Some(Err(_)) if object.metadata.deletion_timestamp.is_some() => default_key,
            key => key.unwrap_or(default_key),
        };
        let mut entry = Self {
            uid: group.uid.as_str().into(),
            tag: tag(cluster, &group.namespace, &group.name, &group.uid),
            key: key.ok()?,
            machine: election::Group::new(World::default()),
            charge: Charge::Open,
            claim_due: true,
            doubted: None,
            claim_after: Duration::ZERO,
            open_beats: 0,
            tracked: BTreeMap::new(),
            contested: BTreeMap::new(),
            owners: Owners::default(),
            invalid: None,
            unreadable: None,
            trouble: None,
            history: Vec::new(),
            reporting: false,
            report_after: Duration::ZERO,
            quiet_until: None,
            hindrance_reported: false,
            report_trouble: None,
            stamp_trouble: None,
            charged_at: Duration::ZERO,
            deleted_at: None,
            object: Arc::new(LeaderGroup::new("", object.spec.clone())),
            name,
            group,
        };
        entry.update(object, now);
        Some(entry)
    }

    /// A newer version of the object.
    pub(super) fn update(&mut self, object: LeaderGroup, now: Duration) {
        if let Some(group) = GroupRef::of(&object) {
            self.group = group;
        }
        self.unreadable = None;
        self.invalid = object.spec.validate().err().map(|invalid| invalid.to_string());
        // A release goes by the token of the term that it ends.
        let latest =
            |history: &[HistoryEntry]| history.first().map(|entry| (entry.token, entry.to.is_none()));
        if let Some(status) = &object.status
            && latest(&status.history) > latest(&self.history)
        {
            self.history.clone_from(&status.history);
        }
        self.deleted_at = object.metadata.deletion_timestamp.as_ref().and(self.deleted_at.or(Some(now)));
        self.object = Arc::new(object);
        for tracked in self.tracked.values_mut() {
            let timeout =
                tracked.facts.probe.as_ref().ok().and_then(Option::as_ref).map(|probe| probe.timeout);
            tracked.evidence.set_thresholds(Thresholds::of(&self.object.spec, timeout));
        }
    }

    /// How long ago the deletion of the group was first seen; zero if it is not being deleted.
    pub(super) fn deleting_for(&self, now: Duration) -> Duration {
        self.deleted_at.map_or(Duration::ZERO, |deleted_at| now.saturating_sub(deleted_at))
    }

    /// Until when the first probes of a replica that was just put in charge may be outstanding.
    fn settled_at(&self) -> Duration {
        self.charged_at + self.object.spec.lock.retry_interval.0 * 2
    }

    /// Whether pods without evidence are not worth a word yet: the replica was just put in charge.
    pub(super) fn settles(&self, now: Duration) -> bool {
        now < self.settled_at()
            && self
                .machine
                .world()
                .members
                .iter()
                .any(|member| member.standing == election::Standing::Unproven)
    }

    pub(super) fn status(&self) -> Option<&LeaderGroupStatus> {
        self.object.status.as_ref()
    }

    pub(super) fn declared(&self) -> Declaration {
        self.status().map(|status| status.declaration.clone()).unwrap_or_default()
    }

    /// The pod that the status declares, which may be active even if nobody is in charge.
    fn declared_holder(&self) -> Option<PodRef> {
        self.declared().holder
    }

    /// A newer version of one of the group's pods.
    pub(super) fn pod_seen(&mut self, pod: &Pod, now: Duration) {
        let facts = PodFacts::from_pod(pod, &self.object.spec);
        let timeout = facts.probe.as_ref().ok().and_then(Option::as_ref).map(|probe| probe.timeout);
        let thresholds = Thresholds::of(&self.object.spec, timeout);
        let member = Member {
            pod: PodRef { name: facts.name.clone(), uid: facts.uid.clone() },
            node: facts.node.clone(),
            version: facts.resource_version.clone(),
            role: self.group.marks.role(pod),
            stamp: stamp_of(pod).map(|stamp| stamp.token),
            stamped_by_us: stamp_of(pod).is_some_and(|stamp| stamp.group == self.group.uid),
            standing: election::Standing::Unproven,
            created: facts.created.map_or(i64::MAX, jiff::Timestamp::as_second),
        };
        let uid: Arc<str> = facts.uid.as_str().into();
        let tracked = self.tracked.entry(uid.clone()).or_insert_with(|| Tracked {
            uid,
            facts: facts.clone(),
            evidence: PodEvidence::new(thresholds),
            member: member.clone(),
        });
        tracked.evidence.set_thresholds(thresholds);
        tracked.evidence.kubelet(&facts, now);
        tracked.member = Member { standing: tracked.member.standing, ..member };
        tracked.facts = facts;
    }

    /// The pod is gone, or no longer one of the group's.
    pub(super) fn pod_gone(&mut self, uid: &str, prober: &mut Prober) {
        self.owners.pod_gone(uid);
        if self.tracked.remove(uid).is_some() {
            prober.remove(uid);
        }
    }

    pub(super) fn evidence(&mut self, uid: &str) -> Option<&mut PodEvidence> {
        self.tracked.get_mut(uid).map(|tracked| &mut tracked.evidence)
    }

    /// Whether a pod of the group can be judged only by the lease of this node.
    pub(super) fn lives_by_lease_of(&self, node: &str) -> bool {
        let mut pods = self.tracked.values();
        pods.any(|tracked| tracked.facts.node.as_deref() == Some(node) && tracked.facts.target().is_none())
    }

    /// This replica's own network led nowhere until `now`.
    pub(super) fn cut_off_until(&mut self, now: Duration) {
        self.tracked.values_mut().for_each(|tracked| tracked.evidence.cut_off_until(now));
    }

    /// What is heard of the pods until `until` may be old.
    pub(super) fn news_late_until(&mut self, until: Duration) {
        self.tracked.values_mut().for_each(|tracked| tracked.evidence.news_late_until(until));
    }

    /// Points the prober at the pods that this replica is to probe.
    pub(super) fn aim(&mut self, probing: Probing, prober: &mut Prober) {
        let holder = self.declared_holder().map(|pod| pod.uid);
        let interval = self.object.spec.lock.retry_interval.0;
        for tracked in self.tracked.values_mut() {
            let wanted = match probing {
                Probing::All => true,
                Probing::Holder => holder.as_deref() == Some(&*tracked.uid),
                Probing::None => false,
            };
            match tracked.facts.target().filter(|_| wanted && !tracked.facts.finished()) {
                Some((ip, probe)) => {
                    let target = Target { ip, probe: probe.clone(), interval };
                    if let Some(first) = prober.set_target(&tracked.uid, &target) {
                        tracked.evidence.retarget(first);
                    }
                }
                None => prober.remove(&tracked.uid),
            }
        }
    }

    /// The world as the election is to see it.
    pub(super) fn world(&mut self, leases: &NodeLeases, now: Duration, lock_away: bool) -> World {
        let holder = match self.charge {
            Charge::Ours => self.machine.holder().map(|pod| pod.uid.clone()),
            _ => self.declared_holder().map(|pod| pod.uid),
        };
        let members = self.tracked.values_mut().map(|tracked| {
            let standing = if holder.as_deref() == Some(&*tracked.uid) {
                health::Standing::Holder
            } else {
                health::Standing::Candidate
            };
            let lease = leases.of(tracked.facts.node.as_deref().unwrap_or_default());
            tracked.member.standing = standing_of(tracked.evidence.verdict(standing, &lease, now));
            tracked.member.clone()
        });
        let members = members.collect();
        let spec = &self.object.spec;
        World {
            members,
            policy: Policy {
                lock_delay: spec.lock.lock_delay.0,
                paused: spec.paused,
                on_delete: spec.on_delete,
            },
            declared: self.declared(),
            obstacle: self.obstacle(),
            deleting: self.object.metadata.deletion_timestamp.is_some(),
            lock_away,
        }
    }

    /// Why nobody of this group may be promoted.
    pub(super) fn obstacle(&self) -> Option<Reason> {
        if self.invalid.is_some() || self.unreadable.is_some() {
            Some(Reason::InvalidSpec)
        } else if !self.contested.is_empty() {
            Some(Reason::SelectedByOtherGroup)
        } else if self.owners.confirmed().is_some() {
            Some(Reason::RoleLabelInOwnerSelector)
        } else if self.owners.asking() {
            Some(Reason::Pending)
        } else {
            None
        }
    }

    /// When something may change although nothing happens.
    pub(super) fn deadline(&self, leases: &NodeLeases, now: Duration) -> Option<Duration> {
        let evidence = self.tracked.values().filter_map(|tracked| {
            let lease = leases.of(tracked.facts.node.as_deref().unwrap_or_default());
            tracked.evidence.next_deadline(&lease, now)
        });
        let settled = Some(self.settled_at()).filter(|_| self.settles(now));
        evidence.chain(self.machine.wake()).chain(settled).min()
    }
}

/// How a lock's row names a group.
pub(super) fn tag(cluster: &str, namespace: &str, name: &str, uid: &str) -> String {
    format!("{cluster}/{namespace}/{name}/{uid}")
}

/// The group that a row's tag names; none if it is not of this cluster.
pub(super) fn tagged(tag: &str, cluster: &str) -> Option<GroupRef> {
    let mut parts = tag.strip_prefix(cluster)?.strip_prefix('/')?.split('/');
    let mut part = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
    let (namespace, name, uid) = (part()?, part()?, part()?);
    parts.next().is_none().then_some(GroupRef {
        namespace,
        name,
        uid,
        marks: Marks::from(&RoutingSpec::default()),
    })
}

/// Whether two tags are of the same place: the older of two such groups is certainly gone when the younger exists.
pub(super) fn same_place(one: &str, other: &str) -> bool {
    let place = |tag: &str| tag.rsplit_once('/').map(|(place, _)| place.to_owned());
    place(one).is_some() && place(one) == place(other)
}

/// The version of an object as a number: what a watch repeats may be older than what a write has returned.
pub(super) fn version(object: &impl kube::ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

fn standing_of(verdict: Verdict) -> election::Standing {
    match verdict {
        Verdict::Eligible { .. } => election::Standing::Eligible,
        Verdict::Failing(reason) => election::Standing::Failing(reason),
        Verdict::Silent { .. } => election::Standing::Silent,
        Verdict::Unknown => election::Standing::Unproven,
        Verdict::Ended(reason) => election::Standing::Ended(reason),
    }
}

/// Whether one group goes before another where both select the same pod: the older one, by UID if of the same second.
pub(super) fn goes_before(one: &LeaderGroup, other: &LeaderGroup) -> bool {
    let age =
        |group: &LeaderGroup| (group.metadata.creation_timestamp.as_ref().map(|time| time.0), group.uid());
    age(one) < age(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_history_that_another_replica_wrote_is_kept_with_its_releases_and_an_old_one_is_not() {
        let change = |token: i64, to: Option<&str>| {
            json!({ "token": token, "to": to, "reason": "PodDeleted",
            "at": "2026-01-01T00:00:00Z", "duration": "1s" })
        };
        let group = |history: Vec<serde_json::Value>| -> LeaderGroup {
            let object = json!({ "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
                "spec": { "selector": { "matchLabels": { "app": "web" } } }, "status": { "history": history } });
            serde_json::from_value(object).expect("a group")
        };
        let promoted = || change(5, Some("web-0"));
        let released = || change(5, None);
        let name = GroupName { namespace: "shop".into(), name: "web".into() };
        let mut entry =
            Entry::new(group(vec![promoted()]), name, "c1", Duration::ZERO).expect("it has a name");
        let mut told = |history: Vec<serde_json::Value>| {
            entry.update(group(history), Duration::ZERO);
            entry.history.iter().map(|entry| (entry.token, entry.to.is_none())).collect::<Vec<_>>()
        };
        let whole = vec![(5, true), (5, false)];
        assert_eq!(told(vec![released(), promoted()]), whole);
        assert_eq!(told(vec![promoted()]), whole, "the watch is behind");
        assert_eq!(told(vec![]), whole, "somebody emptied it");
        assert_eq!(told(vec![change(6, Some("web-1")), released(), promoted()]).len(), 3);
    }

    #[test]
    fn a_deletion_counts_from_when_it_was_seen_and_not_from_when_it_is_asked_about() {
        let at = Duration::from_secs;
        let group = |deleted: Option<&str>| -> LeaderGroup {
            let object = json!({ "metadata": { "name": "web", "namespace": "shop", "uid": "u1", "deletionTimestamp": deleted },
                "spec": { "selector": { "matchLabels": { "app": "web" } } } });
            serde_json::from_value(object).expect("a group")
        };
        let deleted = || group(Some("2026-01-01T00:00:00Z"));
        let name = GroupName { namespace: "shop".into(), name: "web".into() };
        let mut entry = Entry::new(group(None), name.clone(), "c1", at(1)).expect("it has a name");
        assert_eq!(entry.deleting_for(at(20)), Duration::ZERO);
        entry.update(deleted(), at(30));
        entry.update(deleted(), at(35));
        assert_eq!(entry.deleting_for(at(40)), at(10));
        let found = Entry::new(deleted(), name, "c1", at(50)).expect("it has a name");
        assert_eq!(found.deleting_for(at(53)), at(3));
    }

    #[test]
    fn a_tag_of_this_cluster_names_its_group_and_no_other_does() {
        let group = tagged("c1/shop/web/u1", "c1").expect("it is ours");
        assert_eq!((&*group.namespace, &*group.name, &*group.uid), ("shop", "web", "u1"));
        for other in ["c12/shop/web/u1", "c1/shop/web", "c1/shop/web/", "c1/shop/web/u1/x", "reports", ""] {
            assert!(tagged(other, "c1").is_none(), "{other}");
        }
    }
}
