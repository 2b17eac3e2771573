//! Messages to the controller: one bounded channel, in the order of arrival.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{
    endpoints::publishing::EndpointsProblem,
    index,
    lock::{claim::Answered, resync::Rows},
    object::GroupName,
    trouble::Trouble,
};
use crate::{
    api::Sighting,
    election::{Outcome, Ticket},
    routing::Reported,
    telemetry::{Step, Trace},
};
use leadergroup_lock::SessionId;

/// How an effect ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) group: GroupName,
    /// The group's UID. An outcome for a group that was deleted in the meantime is dropped.
    pub(super) uid: Arc<str>,
    pub(super) ticket: Ticket,
    pub(super) outcome: Outcome,
    /// Pods as the API server returned them, perhaps newer than on the watch.
    pub(super) pods: Vec<Pod>,
    /// Whether a strip has changed any of them.
    pub(super) stripped: bool,
    /// The group as a quorum read returned it.
    pub(super) object: Option<Box<Sighting>>,
    /// What to report to the user about a failure.
    pub(super) trouble: Option<Trouble>,
    /// When it began and ended, if traces are on.
    pub(super) step: Option<Step>,
    /// The trace that the order came with, unless it has ended.
    pub(super) trace: Option<Box<Trace>>,
}

/// Something that happened.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large ones, objects on a watch, are the frequent ones")]
pub(super) enum Message {
    /// Something was seen, which is for the index.
    Seen(index::Event),
    /// What a replica, perhaps this one, tells all replicas.
    Told(String),
    /// An effect ended.
    Done(Box<Done>),
    /// The answers to claims that were made for this session.
    Claimed { session: SessionId, answers: Vec<Answered> },
    /// The answer to one that was provisional.
    Resolved { session: SessionId, answer: Box<Answered> },
    /// These groups, if any, could not be given to other replicas. They are still claimed for this one's session.
    NotGiven(Vec<GroupName>),
    /// A write of a status ended, with the group as the API server returned it; `None` if nothing was written because
    /// the group had changed.
    Reported { group: GroupName, uid: Arc<str>, reported: Result<Box<Reported>, Trouble> },
    /// The write of an EndpointSlice of a group ended.
    Published {
        group: GroupName,
        uid: Arc<str>,
        slice: String,
        result: Result<(), EndpointsProblem>,
        step: Option<Step>,
    },
    /// The rows that the session owns, for a comparison.
    Rows(Rows),
}
