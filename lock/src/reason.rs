//! Why a key could not be acquired.

use std::time::Duration;

use crate::{Acquired, Attempt, LockError, Refusal};

/// What stood between a program and a key: when it tried, or when its time to wait was over. Each text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Others hold it or wait for it.
    #[error("others hold it or wait for it; wait longer, or find the holder with `leadergroup lock show`")]
    Others,
    /// Its holder's process has sent no heartbeat for more than twice its ttl, and probably has ended.
    #[error(
        "its holder has been silent for {silent:?} and probably has ended, which takes its ttl of {ttl:?} to confirm; wait \
         longer than that"
    )]
    Silent {
        /// Since its last heartbeat, by the database's clock.
        silent: Duration,
        /// The holder's ttl.
        ttl: Duration,
    },
    /// The last holder's session was marked dead, and [it had asked](crate::ClientConfig::lock_delay) that no other
    /// client gets the key for some time after that.
    #[error(
        "its last holder ended uncleanly and had asked for a delay of {delay:?} after that; wait longer than that"
    )]
    Delay {
        /// The whole of it, from when this process learned of it.
        delay: Duration,
    },
    /// The database may have lost its last commits, so keys get no new holders for a while; see
    /// [`Quarantine`](crate::Quarantine).
    #[error(
        "the database failed over or was restored, so keys get no new holders until the longest ttl of all programs is over; \
         try again after that"
    )]
    Quarantine,
    /// Fenced transactions of the last term are under way, or the row was being changed.
    #[error(
        "transactions of its last holder are under way, or it is being changed at this moment{}; try again",
        blockers.as_ref().map(|who| format!(" ({who})")).unwrap_or_default()
    )]
    Busy {
        /// Who is in the way, if it is known.
        blockers: Option<String>,
    },
    /// The session of the client had ended, or ended just when the key was granted, and there was no new one yet.
    #[error(
        "this program's session had ended, for lack of heartbeats or because others marked it dead, and there was no new \
         one yet; see why in the log, and try again"
    )]
    Session,
    /// No answer at all.
    #[error(
        "the database had not answered until then; wait for longer than its statement timeout to learn why"
    )]
    NoAnswer,
    /// The last question failed.
    #[error("the database could not be asked: {0}")]
    Database(LockError),
}

impl Reason {
    /// What an answer without the key says.
    pub(crate) fn of(attempt: &Attempt) -> Self {
        match &attempt.outcome {
            Acquired::Delayed { delay, .. } => Self::Delay { delay: *delay },
            Acquired::Quarantine => Self::Quarantine,
            Acquired::Refused(Refusal::Busy) => Self::Busy { blockers: attempt.blockers.clone() },
            // A grant that comes here was not worth anything any more.
            Acquired::Refused(_) | Acquired::Granted { .. } => Self::Session,
            Acquired::Held | Acquired::Waiting | Acquired::QueueFull => match attempt.holder {
                Some(holder) if holder.is_suspect() => {
                    Self::Silent { silent: holder.silent, ttl: holder.ttl }
                }
                _ => Self::Others,
            },
        }
    }
}
