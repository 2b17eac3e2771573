//! The series of the groups that this replica owns. A group's gauges end here when another replica takes the group, and
//! begin there. A group that no replica can own because a user must change something has only conditions, which every
//! replica shows that knows of it.

use std::{collections::HashMap, sync::atomic::AtomicU64, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// What is known of one group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReading {
    /// The name of the active pod.
    pub active: Option<String>,
    /// Whether a pod is labelled active, and nothing is known against it.
    pub works: bool,
    /// How many pods carry the label of the active pod.
    pub labelled: u32,
    /// How many pods could be active.
    pub eligible: u32,
    /// How many pods the group has.
    pub members: u32,
    /// The fencing token of the present term.
    pub token: i64,
    /// When the holder last changed, in seconds since 1970. None if the status names no change.
    pub changed_at: Option<i64>,
    /// The conditions.
    pub conditions: Vec<ShownCondition>,
}

/// The type of a condition, and whether it is true.
pub type ShownCondition = (&'static str, bool);

/// What a change of holder means for the former holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It worked: somebody asked for the change, or a rule did.
    Planned,
    /// It failed.
    Failure,
    /// It was deleted, was evicted, or finished.
    End,
    /// There was none, or it keeps the role.
    Other,
}

/// The series of groups.
#[derive(Default)]
pub(super) struct GroupSeries {
    active: Family<GroupLabels, Gauge>,
    pod: Family<PodLabels, Gauge>,
    works: Family<GroupLabels, Gauge>,
    labelled: Family<GroupLabels, Gauge>,
    eligible: Family<GroupLabels, Gauge>,
    members: Family<GroupLabels, Gauge>,
    token: Family<GroupLabels, Gauge>,
    changed_at: Family<GroupLabels, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
    outage: Family<GroupLabels, Counter<f64, AtomicU64>>,
    changes: Family<ChangeLabels, Counter>,
    /// What was set last.
    known: Mutex<HashMap<GroupLabels, Shown>>,
}

/// What is shown of a group.
enum Shown {
    /// This replica owns it.
    Owned(GroupReading),
    /// No replica can own it.
    Unowned(Vec<ShownCondition>),
}

impl Shown {
    fn conditions(&self) -> &[ShownCondition] {
        match self {
            Self::Owned(reading) => &reading.conditions,
            Self::Unowned(conditions) => conditions,
        }
    }

    fn pod(&self) -> Option<&String> {
        match self {
            Self::Owned(reading) => reading.active.as_ref(),
            Self::Unowned(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupLabels {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodLabels {
    namespace: String,
    name: String,
    pod: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    namespace: String,
    name: String,
    r#type: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    namespace: String,
    name: String,
    kind: &'static str,
}

impl GroupSeries {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("active", "1 if the group has an active pod, otherwise 0", self.active.clone());
        registry.register("active_info", "1 for the pod that is active in the group now", self.pod.clone());
        registry.register(
            "active_works",
            "1 if a pod is labelled active and nothing is known against it, otherwise 0",
            self.works.clone(),
        );
        registry.register(
            "active_pods",
            "Pods of the group that carry the label of the active pod; never more than 1 if nobody else sets it",
            self.labelled.clone(),
        );
        registry.register("eligible_pods", "Pods of the group that could be active", self.eligible.clone());
        registry.register("pods", "Pods of the group", self.members.clone());
        registry.register("fencing_token", "The fencing token of the present term", self.token.clone());
        registry.register_with_unit(
            "last_change_timestamp",
            "When the holder last changed, in seconds since 1970",
            Unit::Seconds,
            self.changed_at.clone(),
        );
        registry.register(
            "group_condition",
            "1 for the status that a condition of the group has now; the other one has no series",
            self.conditions.clone(),
        );
        registry.register_with_unit(
            "outage",
            "How long no active pod of the group worked while this replica owned it",
            Unit::Seconds,
            self.outage.clone(),
        );
        registry.register(
            "holder_changes",
            "Changes of holder, by what they mean for the former holder",
            self.changes.clone(),
        );
    }

    pub(super) fn set(&self, namespace: &str, name: &str, reading: GroupReading, outage: Duration) {
        let labels = GroupLabels::new(namespace, name);
        self.outage.get_or_create(&labels).inc_by(outage.as_secs_f64());
        let mut known = self.known.lock();
        let before = known.get(&labels);
        match before {
            Some(Shown::Owned(before)) if *before == reading => return,
            Some(Shown::Owned(_)) => {}
            // A counter that begins at 1 shows no increase.
            _ => ChangeKind::ALL
                .iter()
                .for_each(|kind| drop(self.changes.get_or_create(&labels.change(*kind)))),
        }
        self.set_conditions(&labels, before, &reading.conditions);
        if let Some(pod) = before.and_then(Shown::pod).filter(|pod| reading.active.as_ref() != Some(pod)) {
            self.pod.remove(&labels.pod(pod));
        }
        if let Some(pod) = &reading.active {
            self.pod.get_or_create(&labels.pod(pod)).set(1);
        }
        self.active.get_or_create(&labels).set(i64::from(reading.active.is_some()));
        self.works.get_or_create(&labels).set(i64::from(reading.works));
        self.labelled.get_or_create(&labels).set(i64::from(reading.labelled));
        self.eligible.get_or_create(&labels).set(i64::from(reading.eligible));
        self.members.get_or_create(&labels).set(i64::from(reading.members));
        self.token.get_or_create(&labels).set(reading.token);
        match reading.changed_at {
            Some(at) => drop(self.changed_at.get_or_create(&labels).set(at)),
            None => drop(self.changed_at.remove(&labels)),
        }
        known.insert(labels, Shown::Owned(reading));
    }

    /// Sets the conditions of a group that no replica can own, and removes the gauges that it had here.
    pub(super) fn set_unowned(&self, namespace: &str, name: &str, conditions: &[ShownCondition]) {
        let labels = GroupLabels::new(namespace, name);
        let mut known = self.known.lock();
        let before = known.get(&labels);
        if matches!(before, Some(Shown::Unowned(before)) if before == conditions) {
            return;
        }
        self.set_conditions(&labels, before, conditions);
        self.remove_gauges(&labels, before);
        known.insert(labels, Shown::Unowned(conditions.to_vec()));
    }

    fn set_conditions(&self, labels: &GroupLabels, before: Option<&Shown>, now: &[ShownCondition]) {
        let removed = before.into_iter().flat_map(Shown::conditions);
        for condition in removed.filter(|condition| !now.contains(condition)) {
            self.conditions.remove(&labels.condition(*condition));
        }
        for condition in now {
            self.conditions.get_or_create(&labels.condition(*condition)).set(1);
        }
    }

    fn remove_gauges(&self, labels: &GroupLabels, before: Option<&Shown>) {
        let Self { active, works, labelled, eligible, members, token, changed_at, .. } = self;
        for gauges in [active, works, labelled, eligible, members, token, changed_at] {
            gauges.remove(labels);
        }
        if let Some(pod) = before.and_then(Shown::pod) {
            self.pod.remove(&labels.pod(pod));
        }
    }

    pub(super) fn changed(&self, namespace: &str, name: &str, kind: ChangeKind) {
        let labels = GroupLabels::new(namespace, name);
        self.changes.get_or_create(&labels.change(kind)).inc();
    }

    /// Removes the gauges of a group that another replica owns. The counters stay: what was counted last may not have
    /// been read yet.
    pub(super) fn disown(&self, namespace: &str, name: &str) {
        let labels = GroupLabels::new(namespace, name);
        let Some(before) = self.known.lock().remove(&labels) else { return };
        self.remove_gauges(&labels, Some(&before));
        self.set_conditions(&labels, Some(&before), &[]);
    }

    /// Removes all series of a group that is gone.
    pub(super) fn forget(&self, namespace: &str, name: &str) {
        self.disown(namespace, name);
        let labels = GroupLabels::new(namespace, name);
        self.outage.remove(&labels);
        for kind in ChangeKind::ALL {
            self.changes.remove(&labels.change(kind));
        }
    }
}

impl GroupLabels {
    fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn pod(&self, pod: &str) -> PodLabels {
        PodLabels { namespace: self.namespace.clone(), name: self.name.clone(), pod: pod.to_owned() }
    }

    fn condition(&self, (kind, holds): ShownCondition) -> ConditionLabels {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        ConditionLabels { namespace, name, r#type: kind, status: if holds { "true" } else { "false" } }
    }

    fn change(&self, kind: ChangeKind) -> ChangeLabels {
        ChangeLabels { namespace: self.namespace.clone(), name: self.name.clone(), kind: kind.word() }
    }
}

impl ChangeKind {
    const ALL: [Self; 4] = [Self::Planned, Self::Failure, Self::End, Self::Other];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Failure => "failure",
            Self::End => "end",
            Self::Other => "other",
        }
    }
}
