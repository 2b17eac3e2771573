//! What stood in the way of whoever tried to take a key, or waited for it in vain.

use std::time::Duration;

use super::{Acquired, LockError, Refusal};

/// What stood between somebody and a key: when it was tried, or when a waiter's time was up. Each text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// Others.
    #[error(
        "others hold it, or wait for it; wait longer, or see to them: `leadergroup lock show` tells who they are"
    )]
    Others,
    /// The last holder's session was marked dead, and [it had asked](super::ClientConfig::lock_delay) that nobody gets the
    /// key for some time after that.
    #[error(
        "its last holder ended uncleanly and had asked for a delay of {delay:?} after that; wait longer than that"
    )]
    Delay {
        /// The whole of it, from when the waiter learned of it.
        delay: Duration,
    },
    /// The database may have lost its last commits, so keys go to nobody new for a while; see [`Settler`](super::Settler).
    #[error(
        "the database failed over or was restored, so keys go to nobody new until the longest ttl of all programs is over; \
         try again after that"
    )]
    Unsettled,
    /// Fenced transactions of the last term are under way, or the row was being changed.
    #[error(
        "transactions of its last holder are under way, or it is being changed at this moment; try again"
    )]
    Busy,
    /// The session of the client had ended, or ended just when the key was granted, and there was no new one yet.
    #[error(
        "this program's session had ended, for want of heartbeats or because others marked it dead, and there was no new \
         one yet; see why in the log, and try again"
    )]
    Session,
    /// No answer at all.
    #[error(
        "the database had not answered until then; wait for longer than its statement timeout, to be told why"
    )]
    NoAnswer,
    /// The last question failed.
    #[error("the database could not be asked: {0}")]
    Database(LockError),
}

impl Obstacle {
    /// What an answer without the key says. `settled`: whether the database's history is the one that it was.
    pub(super) fn of(answer: &Acquired, settled: bool) -> Self {
        match answer {
            Acquired::Delayed { delay, .. } => Self::Delay { delay: *delay },
            Acquired::Refused(Refusal::Busy) => Self::Busy,
            // A grant that comes here was not worth anything any more.
            Acquired::Refused(_) | Acquired::Granted { .. } => Self::Session,
            Acquired::Held | Acquired::Waiting | Acquired::QueueFull if settled => Self::Others,
            Acquired::Held | Acquired::Waiting | Acquired::QueueFull => Self::Unsettled,
        }
    }
}
