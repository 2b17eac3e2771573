//! What becomes of a request: decided by the harness, carried out by the server.

use std::time::Duration;

use super::{failure::Failure, kinds::Kind};

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The name of the client, such as a replica and one of its connections.
    pub client: String,
    /// Counts all requests to the server.
    pub number: u64,
    pub verb: Verb,
    pub kind: Kind,
    /// Empty: all namespaces, or an object without one.
    pub namespace: String,
    /// Empty for lists, watches, and creations that leave the name to the server.
    pub name: String,
    pub is_status: bool,
    pub dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

impl Verb {
    /// Whether it may change an object.
    pub fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Update | Self::Patch | Self::Delete)
    }
}

/// What becomes of a request. The default is that it is carried out at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fate {
    /// How long the request is on its way.
    pub before: Duration,
    pub outcome: Outcome,
    /// How long the answer is on its way.
    pub after: Duration,
    pub dropped: Dropped,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Outcome {
    /// It is carried out, and answered.
    #[default]
    Served,
    /// There is no connection.
    Refused,
    /// It is not carried out, and fails.
    Failed(Refusal),
    /// It is carried out, and answered with a failure.
    FailedAfterwards(Refusal),
    /// It is carried out, and the connection ends before the answer.
    AnswerLost,
    /// It is not carried out, and never answered.
    Hung,
    /// It is carried out, and never answered.
    HungAfterwards,
    /// A proxy does not get the answer, and sends it once more after this time. The client gets the second answer.
    SentAgain(Duration),
    /// It is carried out, and answered. So much later it arrives once more, and nobody waits for that answer.
    ArrivesAgain(Duration),
}

/// Failures of the server itself, or of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 429.
    TooManyRequests,
    /// 500: etcd did not answer in time.
    Internal,
    /// 503.
    Unavailable,
    /// 504.
    Timeout,
}

impl Refusal {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::TooManyRequests => Failure::too_many_requests(),
            Self::Internal => Failure::etcd_timeout(),
            Self::Unavailable => Failure::unavailable(),
            Self::Timeout => Failure::timeout(),
        }
    }
}

/// What becomes of a request that its client gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dropped {
    /// The server notices, and does not carry it out if it has not done so yet.
    #[default]
    Cancelled,
    /// It is carried out nevertheless.
    CarriedOut,
}

/// Decides what becomes of each request, in the order of their arrival.
pub trait Fates: Send {
    fn fate(&mut self, request: &RequestInfo) -> Fate;
}

impl<F: FnMut(&RequestInfo) -> Fate + Send> Fates for F {
    fn fate(&mut self, request: &RequestInfo) -> Fate {
        self(request)
    }
}

/// The state of a watch's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    #[default]
    Open,
    /// Nothing arrives. What is sent in the meantime arrives if it opens again.
    Silent,
    /// The server has ended it in an orderly way.
    Ended,
    /// It breaks.
    Broken,
}

/// A watch under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchInfo {
    pub client: String,
    /// The number of its request.
    pub number: u64,
    pub kind: Kind,
    pub namespace: String,
}
