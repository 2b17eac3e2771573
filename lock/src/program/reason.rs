//! Why a key was not acquired.

use std::time::Duration;

use crate::{
    LockError, Refusal, Token,
    protocol::{Acquired, Attempt, MOST_WAITERS},
};

/// Why a program did not get a key: when it tried, or when its time to wait was over. Each text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Others hold it or wait for it.
    #[error("others hold it, or wait for it; wait longer, or see who they are")]
    Others,
    /// The holder's process has sent no heartbeat for more than twice its ttl, and has probably ended.
    #[error(
        "its holder has been silent for {silent:?} and has probably ended, which takes its ttl of {ttl:?} to confirm; \
         wait longer than that"
    )]
    Silent {
        /// The time since its last heartbeat, by the database's clock.
        silent: Duration,
        /// The holder's ttl.
        ttl: Duration,
    },
    /// The last holder's session was marked dead, and it had asked for a [lock delay](crate::ClientConfig::lock_delay).
    #[error(
        "its last holder ended uncleanly and had asked for a lock delay of {delay:?}, of which {} s are left; wait \
         longer than that",
        left.as_millis().div_ceil(1_000)
    )]
    Delay {
        /// The whole delay, from the time when this process learned of it.
        delay: Duration,
        /// How much of it is left.
        left: Duration,
    },
    /// The database may have lost its last commits, so keys get no new holder until the
    /// longest ttl of all sessions has passed.
    #[error(
        "the database failed over or was restored, so keys get no new holder until the longest ttl of all programs is \
         over; try again after that"
    )]
    Quarantine,
    /// Fenced transactions of the last term are under way, or the row was being changed.
    #[error(
        "transactions of its last holder are under way, or it is being changed right now{}; try again",
        blockers.as_ref().map(|who| format!(" ({who})")).unwrap_or_default()
    )]
    Busy {
        /// The processes in the way, if known.
        blockers: Option<String>,
    },
    /// The client's session had ended, or it ended just when the key was granted, and there was no new one yet.
    #[error(
        "this program's session had ended, for lack of heartbeats or because others marked it dead, and there was no \
         new one yet; see the log for the reason, and try again"
    )]
    Session,
    /// The database has not answered at all.
    #[error("the database had not answered by then; wait longer than its statement timeout to learn why")]
    NoAnswer,
    /// The last request failed.
    #[error("the request to the database failed: {0}")]
    Database(LockError),
}

impl Reason {
    /// The reason according to an answer without the key, with how much is left of a lock delay.
    pub(crate) fn of(attempt: &Attempt, delay_left: Option<Duration>) -> Self {
        match &attempt.outcome {
            Acquired::Delayed { delay, .. } => {
                Self::Delay { delay: *delay, left: delay_left.unwrap_or(*delay) }
            }
            Acquired::Quarantine => Self::Quarantine,
            Acquired::Refused(Refusal::Busy) => Self::Busy { blockers: attempt.blockers.clone() },
            // A grant that comes here did not count: the session's lease had ended, or another server answered.
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

/// Why a key could not be acquired, or why work under it was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The time to wait was over.
    #[error("the lock {key:?} could not be acquired within {waited:?}: {reason}")]
    Deadline {
        /// The key.
        key: String,
        /// How long the client has really waited: a little longer than asked for, or much longer if it had to observe
        /// something; see [`Client::lock`](crate::Client::lock).
        waited: Duration,
        /// The reason, according to the last answer.
        reason: Reason,
    },
    /// Too many requests wait for it.
    #[error("the queue of the lock {key:?} is full: {MOST_WAITERS} requests wait for it; try again later")]
    QueueFull {
        /// The key.
        key: String,
    },
    /// The key cannot be used.
    #[error("the lock {key:?} cannot be acquired: {why}")]
    Refused {
        /// The key.
        key: String,
        /// The reason.
        why: String,
    },
    /// The key was lost before the work under it was done and the key released; see
    /// [`Guard::lost`](crate::Guard::lost) for the causes. The work may be complete.
    #[error(
        "the lock {key:?} was lost {ago:?} ago, in term {token}, before the work was done; others may have it"
    )]
    Lost {
        /// The key.
        key: String,
        /// The fencing token of the term.
        token: Token,
        /// How long before this error the term was lost.
        ago: Duration,
    },
    /// The database failed, or refused the operation.
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl ClientError {
    /// Whether the same call may succeed a little later without any change. A key that was lost is not temporary: its
    /// guard stays lost, and only the program knows whether its work may be done again.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Deadline { .. } | Self::QueueFull { .. } => true,
            Self::Refused { .. } | Self::Lost { .. } => false,
            Self::Lock(error) => error.is_temporary(),
        }
    }
}
