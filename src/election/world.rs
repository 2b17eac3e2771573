//! The world as the core sees it: the group's pods with the evidence on them, and the lock's row.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::api::{
    Boot, Declaration, DeletionPolicy, OnHookFailure, PodAt, PodRef, Promised, Reason, Role, Verdict,
};

/// One pod of the group, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name and UID.
    pub pod: PodRef,
    /// The node it is bound to.
    pub node: Option<String>,
    /// Its resourceVersion, for the precondition of a later write.
    pub version: String,
    /// The role in its label.
    pub role: Role,
    /// The token of its stamp.
    pub stamp: Option<i64>,
    /// Whether the stamp is of this group.
    pub stamped_by_us: bool,
    /// Whether its node is about to be emptied, so that it should hand the role over, and not get it.
    pub leaving: bool,
    /// Pods of a higher priority are preferred.
    pub priority: u32,
    /// Whether it has the fencing token that its role calls for: that of its stamp if it is active, otherwise none.
    pub fencing_fits: bool,
    /// What the evidence says of it.
    pub verdict: Verdict,
    /// What its agent has promised, if it has one and it has answered.
    pub agent: Option<Promised>,
    /// When its agent was asked for the last of the answers that it has given, on the clock of the steps.
    pub asked_at: Option<Duration>,
    /// How often its main container was started again, as the kubelet says.
    pub restarts: i32,
    /// When it last answered, or since when it has been asked in vain, if it is silent.
    pub silent_since: Option<Duration>,
    /// The starts of its agent that have ended, as the kubelet says.
    pub ended: Vec<Boot>,
    /// Creation time, compared only with that of other pods: among equals the oldest is preferred.
    pub created: i64,
    /// The revision of the pod's template, compared only with that of other pods; none if nothing controls the pod.
    pub revision: Option<Arc<str>>,
    /// The workload that replaces the pod by one of its newest revision; none if that cannot be told.
    pub workload: Option<Workload>,
}

/// What rolls its pods out, revision by revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Tells it from other workloads.
    pub name: Arc<str>,
    /// The pod's number, if the workload replaces the pods in descending order of their numbers.
    pub ordinal: Option<u32>,
}

impl Member {
    /// For tests and benchmarks: a standby that could become active, on a node of its own, with the stamp of this term.
    #[doc(hidden)]
    pub fn standby(name: &str, token: i64) -> Self {
        Self {
            pod: PodRef { name: name.to_owned(), uid: format!("uid-{name}") },
            node: Some(format!("node-{name}")),
            version: "11".to_owned(),
            role: Role::Standby,
            stamp: Some(token),
            stamped_by_us: true,
            leaving: false,
            priority: 0,
            fencing_fits: true,
            verdict: Verdict::Eligible,
            agent: None,
            asked_at: None,
            silent_since: None,
            restarts: 0,
            ended: Vec::new(),
            created: 0,
            revision: None,
            workload: None,
        }
    }

    /// Whether it is a standby with the stamp of this term.
    pub(super) fn is_standby_of(&self, token: i64) -> bool {
        self.role == Role::Standby && self.stamped_by_us && self.stamp == Some(token) && self.fencing_fits
    }

    /// This pod, to be stripped under this token. Its version is that of the watch, unless what the watch shows could
    /// forbid the write or make it unnecessary: a stamp of a later term, or the very marks of this one, or the active
    /// label with the stamp of another group. Only a read can tell whether that is so.
    pub(super) fn to_strip(&self, token: i64) -> PodAt {
        let later = self.stamped_by_us && self.stamp.is_some_and(|stamp| stamp > token);
        let foreign = self.role == Role::Active && self.stamp.is_some() && !self.stamped_by_us;
        self.at(!later && !foreign && !self.is_standby_of(token))
    }

    /// The same, to be stamped as a standby: an active pod is not.
    pub(super) fn to_stamp(&self, token: i64) -> PodAt {
        if self.role == Role::Active { self.at(false) } else { self.to_strip(token) }
    }

    /// The same, to lose the group's marks: not a pod with the stamp of another group, or without any mark.
    pub(super) fn to_clear(&self) -> PodAt {
        self.at(self.stamped_by_us || (self.stamp.is_none() && self.role != Role::None))
    }

    fn at(&self, known: bool) -> PodAt {
        PodAt { pod: self.pod.clone(), version: known.then(|| self.version.clone()) }
    }
}

/// The parts of the spec that matter to the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How long to wait after the loss of a holder that did not end cleanly.
    pub delay: Duration,
    /// No new change of holder.
    pub paused: bool,
    /// How long a pod of a higher priority than the holder's must have been fit before it becomes the holder; none if
    /// it never does so while the holder works.
    pub failback: Option<Duration>,
    /// Whether a holder hands over before a rollout deletes it.
    pub leaves_before_rollout: bool,
    /// Whether a pod that was active is deleted, once the next one is.
    pub deletes_demoted: bool,
    /// What happens to the labels when the group is deleted.
    pub deletion_policy: DeletionPolicy,
    /// How agents run a program in the pods; none if they have no agents.
    pub agent: Option<AgentPolicy>,
    /// How pods are told their roles.
    pub hooks: HookPolicy,
}

/// How pods are told their roles: what happens if that fails; none if they are not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookPolicy {
    /// That they are active.
    pub promote: Option<OnHookFailure>,
    /// That they are standbys.
    pub demote: Option<OnHookFailure>,
}

impl HookPolicy {
    pub(super) fn of(self, role: Role) -> Option<OnHookFailure> {
        match role {
            Role::Active => self.promote,
            Role::Standby => self.demote,
            Role::None => None,
        }
    }
}

/// How agents run a program in the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentPolicy {
    /// How long a program may run after a read of the declaration.
    pub lease: Duration,
    /// How long a planned change waits for the end of the former program.
    pub stop_timeout: Duration,
}

/// A request for a planned change of holder (a switchover).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchoverRequest {
    /// Distinguishes this request from others.
    pub id: String,
    /// The name of the pod to make active; any pod if there is none.
    pub to: Option<String>,
}

/// A change of holder that the status reports. Another replica may have carried it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastChange {
    /// The token of the term that began.
    pub token: i64,
    /// The name of the former holder, if it was replaced because it failed.
    pub failed: Option<String>,
}

/// The group as last seen through watches and evidence. It may lag behind; every write checks its preconditions
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// The pods that the selector matches.
    pub members: Vec<Member>,
    /// From the spec.
    pub policy: Policy,
    /// The declaration in the status.
    pub declared: Declaration,
    /// The changes of holder in the status' history, the latest first.
    pub history: Arc<[PastChange]>,
    /// The reason why no pod of this group may be promoted, if there is one.
    pub obstacle: Option<Reason>,
    /// The switchover that was requested last, unless the status says what became of it.
    pub switchover: Option<SwitchoverRequest>,
    /// The group has a deletionTimestamp.
    pub deleting: bool,
    /// The database has been unreachable for so long that a deletion no longer waits for it.
    pub lock_away: bool,
    /// This replica is being stopped: it finishes what it began, and begins nothing.
    pub stopping: bool,
}

/// The lock's row of this group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The fencing token of the current term; 0 before the first.
    pub token: i64,
    /// The grant that began the term.
    pub grant: Option<Uuid>,
    /// The holder; none when the lock is free.
    pub holder: Option<PodRef>,
    /// Whether the holder's promotion was confirmed.
    pub confirmed: bool,
    /// The holders of all terms since the last confirmed one, that one included.
    pub pending: Vec<PodRef>,
    /// Why the current term was granted, if it has not ended.
    pub reason: Option<Reason>,
}
