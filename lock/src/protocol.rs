//! The single steps of the protocol, which clients and controllers are made of: sessions and their heartbeats,
//! observing others, requests for a key. For programs that need another client than [`Client`](crate::Client). With the
//! feature `controller`.

pub use crate::program::acquire::{AcquireRequest, Acquired, Attempt, HolderSession, Transfer, Wait};
pub use crate::session::{failure_detector::FailureDetector, quarantine::Quarantine};
pub use crate::types::{Beat, EraId, MAX_TEXT_BYTES, MOST_WAITERS, PROTOCOL, SessionSeen};
