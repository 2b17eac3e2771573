//! The model of the API server: pods and the group, with the preconditions of the real one, and the invariants that
//! are checked at every write.

use std::collections::BTreeMap;

use leadergroup::api::{Declaration, PodRef, Role};
use uuid::Uuid;

/// A pod as stored in etcd, and its real health.
#[allow(clippy::struct_field_names, reason = "name and UID go by this name everywhere")]
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub pod: PodRef,
    pub version: u64,
    pub role: Role,
    /// The group that stamped it, and the term.
    pub stamp: Option<(u32, i64)>,
    pub deleting: bool,
    /// The kubelet reports that a container ended.
    pub crashed: bool,
    /// The restart count of the kubelet.
    pub restarts: u32,
    pub node: &'static str,
}

/// The outcome of probes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    Well,
    Refusing,
    Hung,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GroupObject {
    pub uid: u32,
    pub version: u64,
    pub deleting: bool,
    pub paused: bool,
    pub declared: Declaration,
}

/// A grant of the lock by any database, even if that database has lost it.
#[derive(Clone, Debug)]
pub struct Granted {
    pub token: i64,
    pub id: Uuid,
    pub owner: String,
    /// The pod that was active at the time of the grant.
    pub active: Option<String>,
}

/// A request to the API server.
#[derive(Clone, Debug)]
pub enum Call {
    Pod(PodRef),
    Group,
    /// With UID and version as preconditions, as in a merge patch with both in its metadata.
    Label {
        pod: PodRef,
        version: u64,
        role: Role,
        stamp: Option<(u32, i64)>,
    },
    Declare {
        uid: u32,
        previous: Declaration,
        next: Declaration,
    },
    Unfinalize {
        uid: u32,
        version: u64,
    },
}

/// An answer of the API server.
#[derive(Clone, Debug)]
pub enum Answer {
    Pod(Option<Pod>),
    Group(Option<GroupObject>),
    /// The pod after the write; none if a precondition failed.
    Labelled(Option<Pod>),
    /// Whether the patch was applied.
    Patched(bool),
}

#[derive(Clone, Debug, Default)]
pub struct Server {
    pub revision: u64,
    pub pods: BTreeMap<String, Pod>,
    pub health: BTreeMap<String, Health>,
    /// UIDs of pods that were unhealthy at any time: only these may lose the role.
    pub blemished: Vec<String>,
    pub group: Option<GroupObject>,
    pub ledger: Vec<Granted>,
    /// All declarations ever made: group, token, grant, holder.
    pub declared: Vec<(u32, i64, Option<String>, String)>,
    /// Whether a database lost commits. Then a recreated group may continue from an older token than the last one of
    /// its predecessor. The tokens of one group still grow.
    pub forgot: bool,
    /// The number of promotions, for tests that must not pass without any.
    pub promotions: u32,
    pub violation: Option<String>,
}

impl Server {
    pub fn violate(&mut self, text: impl Into<String>) {
        self.violation.get_or_insert(text.into());
    }

    pub fn actives(&self) -> Vec<&Pod> {
        self.pods.values().filter(|pod| pod.role == Role::Active).collect()
    }

    pub fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    /// Carries out a request in one transaction, as etcd does.
    pub fn serve(&mut self, call: &Call) -> Answer {
        match call {
            Call::Pod(pod) => {
                Answer::Pod(self.pods.get(&pod.name).filter(|found| found.pod.uid == pod.uid).cloned())
            }
            Call::Group => Answer::Group(self.group.clone()),
            Call::Label { pod, version, role, stamp } => {
                Answer::Labelled(self.label(pod, *version, *role, *stamp))
            }
            Call::Declare { uid, previous, next } => Answer::Patched(self.declare(*uid, previous, next)),
            Call::Unfinalize { uid, version } => {
                let found = self.group.as_ref().filter(|found| found.uid == *uid);
                let applied = found.is_some_and(|found| found.version == *version && found.deleting);
                if applied {
                    self.group = None;
                    self.next_revision();
                }
                Answer::Patched(applied)
            }
        }
    }

    fn label(&mut self, pod: &PodRef, version: u64, role: Role, stamp: Option<(u32, i64)>) -> Option<Pod> {
        let found = self.pods.get(&pod.name)?.clone();
        if found.pod.uid != pod.uid || found.version != version {
            return None;
        }
        let mut new = Pod { role, stamp, ..found.clone() };
        // A write that changes nothing creates no revision.
        if new != found {
            new.version = self.next_revision();
            self.pods.insert(pod.name.clone(), new.clone());
            self.judge(&found, &new);
        }
        Some(new)
    }

    fn declare(&mut self, uid: u32, previous: &Declaration, next: &Declaration) -> bool {
        let Some(found) = self.group.as_mut().filter(|found| found.uid == uid) else { return false };
        if found.declared != *previous {
            return false;
        }
        found.declared = next.clone();
        self.revision += 1;
        found.version = self.revision;
        let holder = next.holder.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default();
        let before = self.declared.iter().filter(|(group, ..)| *group == uid || !self.forgot);
        if before.map(|(_, token, ..)| *token).max().is_some_and(|highest| highest >= next.token) {
            self.violate(format!("I3: token {} was declared again or went back", next.token));
        }
        let granted = self.ledger.iter().any(|granted| {
            granted.token == next.token
                && Some(granted.id.to_string()) == next.grant
                && granted.owner == holder
        });
        if !granted {
            self.violate(format!("I2: token {} was declared without a grant to {holder}", next.token));
        }
        self.declared.push((uid, next.token, next.grant.clone(), holder));
        true
    }

    /// Checks the invariants on one write of a label.
    fn judge(&mut self, before: &Pod, after: &Pod) {
        let uid = &after.pod.uid;
        let actives = self.actives();
        if actives.len() > 1 {
            let names: Vec<_> = actives.iter().map(|pod| pod.pod.uid.as_str()).collect();
            let text = format!("I1: {} are active", names.join(" and "));
            self.violate(text);
        }
        if after.role == Role::Active && (before.role != Role::Active || before.stamp != after.stamp) {
            self.promotions += 1;
            let (group, token) = after.stamp.unwrap_or_default();
            let holds = self
                .declared
                .iter()
                .any(|(of, declared, _, holder)| *of == group && *declared == token && holder == uid);
            if !holds {
                self.violate(format!("I2: {uid} turned active with token {token}, not declared for it"));
            }
            let later = self
                .declared
                .iter()
                .find(|(of, declared, _, holder)| *of == group && *declared > token && holder != uid);
            if let Some((_, later, ..)) = later {
                self.violate(format!(
                    "I4: {uid} turned active with token {token} after {later} was declared"
                ));
            }
        }
        if before.role == Role::Active
            && after.role != Role::Active
            && !self.blemished.contains(uid)
            && self.is_established(uid)
        {
            self.violate(format!(
                "I5: {uid} lost the role, and was never unhealthy; {after:?}, {:?}, {:?}",
                self.group, self.ledger
            ));
        }
    }

    /// Whether a pod is declared, or was already active when the current term was granted: such a pod may lose the
    /// role only because of evidence. A pod that became active while it was being replaced had not been seen active
    /// by any replica.
    ///
    /// While two databases both act as primary and pods fail as well, each of two replicas may replace the other
    /// one's choice. So this is checked only if the pods are healthy.
    fn is_established(&self, uid: &String) -> bool {
        if self.forgot && !self.blemished.is_empty() {
            return false;
        }
        let Some(group) = self.group.as_ref().filter(|group| !group.deleting) else { return false };
        let declared = &group.declared;
        let mut granted = self.ledger.iter();
        let granted = granted.find(|granted| Some(granted.id.to_string()) == declared.grant);
        declared.holder.as_ref().is_some_and(|holder| holder.uid == *uid)
            || granted.is_some_and(|granted| granted.active.as_ref() == Some(uid))
    }
}
