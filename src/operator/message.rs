//! What reaches the operator's loop: one channel, bounded, in the order of arrival.

use std::sync::Arc;

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::runtime::watcher;

use super::{claim::Answer, lock_keeper::LockNews, resync::Audit};
use crate::{
    api::Sighting,
    election::{Outcome, Ticket},
};
use leadergroup_lock::SessionId;

/// A group's name: namespace, then name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupName {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

impl std::fmt::Display for GroupName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The namespace that a watch covers; none: all of them.
pub(super) type Scope = Option<Arc<str>>;

/// Which watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Watched {
    Groups,
    Pods,
    NodeLeases,
}

/// What an effect brought back.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) group: GroupName,
    /// The group's UID: an outcome for one that was deleted meanwhile is nobody's.
    pub(super) uid: Arc<str>,
    pub(super) ticket: Ticket,
    pub(super) outcome: Outcome,
    /// Pods as the API server returned them, newer than what the watch has shown.
    pub(super) pods: Vec<Pod>,
    /// The group as a quorum read returned it.
    pub(super) object: Option<Box<Sighting>>,
    /// What a user should know about a failure.
    pub(super) trouble: Option<Trouble>,
}

/// What keeps an effect from succeeding, and on which side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The database.
    Lock(String),
    /// The API server refused a write.
    Refused(String),
    /// The API server is out of reach.
    Unreachable(String),
}

/// Something that happened.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large ones, objects on a watch, are the frequent ones")]
pub(super) enum Message {
    Group(Scope, watcher::Event<Sighting>),
    Pod(Scope, watcher::Event<Pod>),
    NodeLease(watcher::Event<Lease>),
    WatchFailed(Watched, Scope, String),
    Lock(LockNews),
    Done(Box<Done>),
    Claimed {
        session: SessionId,
        answers: Vec<(GroupName, Arc<str>, Result<Answer, Trouble>)>,
    },
    Reported {
        group: GroupName,
        uid: Arc<str>,
        object: Result<Box<Sighting>, Trouble>,
    },
    /// Whether the owner of some pods selects them by the group's role label.
    Owner {
        group: GroupName,
        uid: Arc<str>,
        owner: OwnerReference,
        selects: Result<bool, Trouble>,
    },
    ApiServer {
        reachable: bool,
    },
    Audited(Audit),
}
