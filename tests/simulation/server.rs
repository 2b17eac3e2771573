//! The model of the API server: pods and the group, with the preconditions of the real one, and the invariants that
//! are checked at every write.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leadergroup::api::{Declaration, DeletionPolicy, PodAt, PodRef, Role};
use uuid::Uuid;

/// A pod as stored in etcd, and its real health.
#[allow(clippy::struct_field_names, reason = "name and UID go by this name everywhere")]
#[allow(clippy::struct_excessive_bools, reason = "each is true of a pod independently of the others")]
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
    /// The group's selector matches its labels.
    pub selected: bool,
    /// Its node is cordoned. In the cluster this is on the watch of nodes.
    pub leaving: bool,
    pub node: &'static str,
    /// The server's revision at its creation.
    pub created: u64,
}

/// The outcome of probes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    Well,
    Refusing,
    Hung,
}

/// Which writes to a pod an admission policy or a webhook refuses. It lets anyone take label and stamp off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Those that make it active.
    Promotion,
    /// All that set its role.
    Role,
    /// Those that make it active, without an answer that says so: it could also be that they took effect.
    Unclear,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GroupObject {
    pub uid: u32,
    pub version: u64,
    pub deleting: bool,
    pub paused: bool,
    pub delay: Duration,
    /// How long a pod of a higher priority waits until it gets the role back, if it does.
    pub failback: Option<Duration>,
    pub deletion_policy: DeletionPolicy,
    /// An older group selects the same pods. In the cluster this is the other group's object, on the same watch.
    pub contested: bool,
    /// The last request for a switchover.
    pub requested: Option<String>,
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
    /// Lists the pods that a group has stamped.
    Stamped(u32),
    Group,
    /// A dry run of a promotion, and of the strip of another pod.
    Try(PodRef, Option<PodRef>),
    /// With UID and version as preconditions, as in a merge patch with both in its metadata.
    Label {
        pod: PodRef,
        version: u64,
        /// None leaves the role as it is.
        role: Option<Role>,
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
    /// With their versions.
    Pods(Vec<PodAt>),
    Group(Option<GroupObject>),
    /// The pod after the write; none if a precondition failed.
    Labelled(Option<Pod>),
    /// An admission policy refused the write of a label.
    Refused,
    /// The same, with the status that a write to a pod with another UID gets.
    Invalid,
    /// It refused the strip of a dry run.
    HolderRefused,
    /// No definite answer.
    Unclear,
    /// A dry run of a promotion would succeed.
    Accepted,
    /// Whether the patch was applied.
    Patched(bool),
}

#[derive(Clone, Debug, Default)]
pub struct Server {
    pub revision: u64,
    pub pods: BTreeMap<String, Pod>,
    pub health: BTreeMap<String, Health>,
    /// The pod to which an admission policy refuses writes, by its UID.
    pub refusing: Option<(String, Refusal)>,
    /// The replica and the UID of the pod between which the network has failed.
    pub cut: Option<(usize, String)>,
    /// UIDs of pods against which there is or was evidence: they were unhealthy, deleted, edited by others or not
    /// selected, and not all replicas know yet that this is over. Only these may lose the role.
    pub blemished: BTreeSet<String>,
    /// The last revision at which a pod was not well, deleted or not selected, by UID.
    pub bad_until: BTreeMap<String, u64>,
    /// UIDs of pods that a planned switchover replaces, until they are declared again. They may lose the role, too.
    pub released: BTreeSet<String>,
    /// The requests that were carried out.
    pub fulfilled: BTreeSet<String>,
    /// UIDs of pods whose role was set by others. The operator puts it right.
    pub meddled: BTreeSet<String>,
    /// UIDs of pods that a deletion has left active. The next group of the same key strips them, because the lock's
    /// terms name them. If a database lost these, nobody can tell whose label it is.
    pub kept: BTreeSet<String>,
    pub group: Option<GroupObject>,
    pub ledger: Vec<Granted>,
    /// All declarations ever made: group, token, grant, holder.
    pub declared: Vec<(u32, i64, Option<String>, String)>,
    /// Whether a database lost commits. Then a recreated group may continue from an older token than the last one of
    /// its predecessor. The tokens of one group still grow.
    pub forgot: bool,
    /// Whether two databases may still hold different decisions, since the last one that lost commits.
    pub divided: bool,
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
            Call::Stamped(group) => {
                let stamped = self.pods.values().filter(|pod| pod.stamp.is_some_and(|(of, _)| of == *group));
                let at = |pod: &Pod| PodAt { pod: pod.pod.clone(), version: Some(pod.version.to_string()) };
                Answer::Pods(stamped.map(at).collect())
            }
            Call::Group => Answer::Group(self.group.clone()),
            Call::Try(pod, _) if self.refuses(pod, Role::Active) => self.refusal(),
            Call::Try(_, Some(from)) if self.refuses(from, Role::Standby) => Answer::HolderRefused,
            Call::Try(pod, _) => {
                let found = self.pods.get(&pod.name).filter(|found| found.pod.uid == pod.uid);
                found.map_or(Answer::Pod(None), |_| Answer::Accepted)
            }
            // Versions are compared before policies are asked.
            Call::Label { pod, version, role: Some(role), stamp: Some(_) }
                if self.refuses(pod, *role) && self.finds(pod, *version) =>
            {
                self.refusal()
            }
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

    /// A policy chooses the status: 403, or 422 if it gives no reason.
    fn refusal(&self) -> Answer {
        match self.refusing {
            Some((_, Refusal::Role)) => Answer::Invalid,
            Some((_, Refusal::Unclear)) => Answer::Unclear,
            _ => Answer::Refused,
        }
    }

    fn finds(&self, pod: &PodRef, version: u64) -> bool {
        self.pods.get(&pod.name).is_some_and(|found| found.pod.uid == pod.uid && found.version == version)
    }

    pub fn refuses(&self, pod: &PodRef, role: Role) -> bool {
        let refusal = self.refusing.as_ref().filter(|(uid, _)| *uid == pod.uid).map(|(_, refusal)| *refusal);
        match role {
            Role::Active => refusal.is_some(),
            Role::Standby => refusal == Some(Refusal::Role),
            Role::None => false,
        }
    }

    fn label(
        &mut self,
        pod: &PodRef,
        version: u64,
        role: Option<Role>,
        stamp: Option<(u32, i64)>,
    ) -> Option<Pod> {
        let found = self.pods.get(&pod.name).filter(|_| self.finds(pod, version))?.clone();
        let role = role.unwrap_or(found.role);
        let mut new = Pod { role, stamp, ..found.clone() };
        // A write that changes nothing creates no revision.
        if new != found {
            new.version = self.next_revision();
            self.pods.insert(pod.name.clone(), new.clone());
            let kept = role == found.role && stamp.is_none();
            let meddled = !kept && self.meddled.remove(&pod.uid);
            if kept && role == Role::Active {
                self.kept.insert(pod.uid.clone());
            } else {
                self.kept.remove(&pod.uid);
            }
            self.judge(&found, &new, meddled);
        }
        Some(new)
    }

    fn declare(&mut self, uid: u32, previous: &Declaration, next: &Declaration) -> bool {
        let Some(found) = self.group.as_mut().filter(|found| found.uid == uid) else { return false };
        if found.declared != *previous {
            return false;
        }
        if let Some(request) = next.switchover.as_ref().filter(|_| next.switchover != previous.switchover)
            && !self.fulfilled.insert(request.clone())
        {
            self.violation.get_or_insert(format!("the request {request} is carried out again"));
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
        self.released.remove(&holder);
        self.declared.push((uid, next.token, next.grant.clone(), holder));
        true
    }

    /// Checks the invariants on one write of a label. `meddled`: others had set the role that it changes.
    fn judge(&mut self, before: &Pod, after: &Pod, meddled: bool) {
        let uid = &after.pod.uid;
        // A pod that left the selector belongs to the group that has stamped it.
        let group = after.stamp.map(|(group, _)| group);
        let ours = self.actives().into_iter().filter(|pod| {
            let belongs = pod.selected || pod.stamp.is_some_and(|(of, _)| Some(of) == group);
            let nobodys = self.forgot && self.kept.contains(&pod.pod.uid);
            belongs && !nobodys && !self.meddled.contains(&pod.pod.uid)
        });
        let actives: Vec<_> = ours.collect();
        if actives.len() > 1 {
            let names: Vec<_> = actives.iter().map(|pod| pod.pod.uid.as_str()).collect();
            let text = format!("I1: {} are active", names.join(" and "));
            self.violate(text);
        }
        // A deletion that keeps the labels removes the stamp.
        let kept = before.role == Role::Active && after.stamp.is_none();
        if after.role == Role::Active && !kept && (before.role != Role::Active || before.stamp != after.stamp)
        {
            self.promotions += 1;
            let (group, token) = after.stamp.unwrap_or_default();
            let holds = self
                .declared
                .iter()
                .any(|(of, declared, _, holder)| *of == group && *declared == token && holder == uid);
            if !holds {
                self.violate(format!("I2: {uid} turned active with token {token}, not declared for it"));
            }
            let later = self.declared.iter().find(|(of, declared, ..)| *of == group && *declared > token);
            // A stamp that others have changed on an active pod may be put back late: that makes no pod active.
            let makes_active = before.role != Role::Active || !meddled;
            if let Some((_, later, ..)) = later.filter(|_| makes_active) {
                self.violate(format!(
                    "I4: {uid} turned active with token {token} after {later} was declared"
                ));
            }
        }
        if before.role == Role::Active
            && after.role != Role::Active
            && !meddled
            && !self.blemished.contains(uid)
            && !self.released.contains(uid)
            && self.is_established(uid)
        {
            self.violate(format!(
                "I5: {uid} lost the role, and there is no evidence against it; {after:?}, {:?}, {:?}",
                self.group, self.ledger
            ));
        }
    }

    /// Records which pods are not well now. A restart stays evidence until all replicas have seen it.
    pub fn note_bad_pods(&mut self) {
        for pod in self.pods.values() {
            let uid = &pod.pod.uid;
            let restarted = pod.restarts > 0 && self.blemished.contains(uid);
            let well = self.health.get(uid) == Some(&Health::Well);
            if pod.deleting || pod.crashed || restarted || !pod.selected || !well {
                self.bad_until.insert(uid.clone(), self.revision);
            }
        }
    }

    /// I5: a replica replaces a holder. There must have been something wrong with it when the replica saw the evidence
    /// or after that: whatever was over before must not count.
    pub fn judge_evidence(&mut self, holder: &str, since: Option<u64>) {
        let there = self.pods.values().any(|pod| pod.pod.uid == holder);
        let bad = self.bad_until.get(holder);
        if there && since.is_none_or(|since| bad.is_none_or(|bad| *bad < since)) {
            self.violate(format!(
                "I5: {holder} is replaced, with evidence since {since:?}, but bad until {bad:?}"
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
        if self.divided && !self.blemished.is_empty() {
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
