//! What goes into the index, and what it asks of the controller.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod, Service},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::runtime::watcher;

use super::{
    lock_view::LockNews,
    watch_health::{Scope, Watched},
};
use crate::{
    api::{Sighting, Unreadable},
    health::ProbeEvent,
    operator::{
        object::{GroupName, record::Record},
        trouble::Trouble,
    },
    ownership::{Opinion, Yielded},
    routing::{OtherSlice, RoleLabelUse},
};
use leadergroup_lock::SessionId;

/// Something that was seen.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large ones, objects on a watch, are the frequent ones")]
pub(in crate::operator) enum Event {
    /// A watch of groups.
    Group(Scope, watcher::Event<Sighting>),
    /// A watch of pods.
    Pod(Scope, watcher::Event<Pod>),
    /// The watch of node leases.
    NodeLease(watcher::Event<Lease>),
    /// The watch of nodes.
    Node(watcher::Event<Node>),
    /// A watch of Services.
    Service(Scope, watcher::Event<Service>),
    /// A watch of EndpointSlices of groups.
    Slice(Scope, watcher::Event<EndpointSlice>),
    /// A watch of the EndpointSlices that others write.
    OtherSlice(Scope, watcher::Event<OtherSlice>),
    /// A watch failed, with this problem.
    WatchFailed(Watched, Scope, String),
    /// A probe was sent or ended.
    Probe(ProbeEvent),
    /// The probes of a pod go elsewhere, beginning with this number.
    Retargeted(Arc<str>, u64),
    /// The session with the lock, or the database.
    Lock(LockNews),
    /// Another replica asked about pods, or answered.
    Opinion(SessionId, Opinion),
    /// The answer to a ping of the API server.
    ApiServer { reachable: bool },
    /// Pods as a call returned them, perhaps newer than on the watch.
    PodsRead(Vec<Pod>),
    /// A group as a call returned it, perhaps newer than on the watch.
    GroupRead(Sighting),
    /// An owner of pods was read: how it uses the role label.
    OwnerRead {
        group: GroupName,
        uid: Arc<str>,
        owner: OwnerReference,
        found: Result<Option<RoleLabelUse>, Trouble>,
    },
}

/// Something that the controller has to do besides looking at the groups that changed.
#[derive(Debug)]
pub(in crate::operator) enum Request {
    /// Stop probing this pod.
    StopProbing(Arc<str>),
    /// Read how this owner of pods of the group uses the role label.
    ReadOwner(Arc<Record>, OwnerReference),
    /// The group is gone. One of the same name that comes later is another group.
    Forget(GroupName),
    /// The group can no longer be decoded: another replica may be able to do that.
    PassOn(GroupName),
    /// Report in the status of a group that it cannot be decoded.
    ReportUndecodable(Box<Unreadable>),
    /// The session ended: other replicas may own what this one owned.
    SessionEnded,
    /// The database may have lost commits: read the rows of all owned groups again.
    ReadRows,
    /// Ask the other replicas whether they hear this holder; `blind` if this one cannot judge it, for reasons of its
    /// own.
    AskOthers { group: GroupName, pod: Arc<str>, blind: bool },
    /// Probe this pod out of turn: another replica asks about it.
    ProbeNow(Arc<str>),
    /// Tell the other replica that this one hears this holder.
    Vouch { group: GroupName, pod: Arc<str> },
    /// Another replica may have given up groups although its session lives: ask again who owns them.
    DoubtOwners(Yielded),
    /// Another replica hears this holder, and can take the group.
    Vouched { group: GroupName, pod: Arc<str> },
    /// A heartbeat succeeded, or groups can be claimed that could not be before.
    Heartbeat,
    /// An outage is over. The next one is reported again, by replicas that do not own the group too.
    OutageOver,
    /// The watches may work better or worse than before.
    WatchesChanged,
    /// Log this.
    Log(Notice),
}

/// Something to log.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::operator) enum Notice {
    GroupWithoutName,
    UnusableKey(GroupName),
    Undecodable(GroupName, String),
    UndecodableAndDeleted(GroupName, String),
    WatchFailed(Watched, Scope, String),
    WatchesWork,
    DatabaseDown(String),
    DatabaseUp,
    OtherNodesUnreachable,
    CommitsLost,
}
