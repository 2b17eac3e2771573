//! The state of the writes of a group's `EndpointSlices`, and what is reported of them.

use std::time::Duration;

use crate::{api::Reason, routing::RoutingError};

/// Why the endpoints of a group's Services are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointsProblem {
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl EndpointsProblem {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl From<RoutingError> for EndpointsProblem {
    fn from(error: RoutingError) -> Self {
        let reason = if error.is_refusal() { Reason::WriteRefused } else { Reason::Changing };
        Self::new(reason, error.to_string())
    }
}

/// What the status says of a group's Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointsReport {
    /// The Services whose endpoints are managed.
    pub(super) services: Vec<String>,
    pub(super) problem: Option<EndpointsProblem>,
}

/// The state of the writes of a group's slices.
#[derive(Debug, Default)]
pub(super) struct Publishing {
    /// Writes are under way.
    pub(super) writing: bool,
    /// The versions that were seen when the last writes began.
    pub(super) seen: Vec<u64>,
    /// Until then nothing is written again unless other versions are seen.
    pub(super) after: Duration,
    /// Why the last writes failed.
    pub(super) failed: Option<EndpointsProblem>,
    pub(super) report: EndpointsReport,
}
