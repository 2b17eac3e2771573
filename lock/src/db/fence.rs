//! The program's side of fencing: what a change of holder does about transactions of the old holder that are under way.
//!
//! An application calls `leadergroup.fence(key, token)` first in a transaction. Until that transaction ends, no grant
//! of the key takes effect; this module limits how long that may take. The mechanism itself is SQL
//! (`migrations/0004_fence.sql`); `docs/fencing.md` explains it.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::db::statement::{Row, get};
use crate::{Key, LockError};

/// A fence for data in another database than the lock's: SQL that creates the function `leadergroup.fence_seen(key,
/// token)` there. May be run again.
pub const FENCE_SEEN_SQL: &str = include_str!("../install/fence_seen.sql");

/// What happens to a fenced transaction of the old holder that does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// The server terminates its connection, so that nothing of it is committed. This needs a privilege: the lock's
    /// role has to be a member of the application's role, or of `pg_signal_backend`.
    Terminate,
    /// The change of holder waits for the transaction, however long it takes: it is refused with
    /// [`Refusal::Busy`](crate::Refusal::Busy), and the caller tries it again.
    Wait,
}

/// How long fenced transactions of the old holder may delay a change of holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FencePolicy {
    /// How long a change waits for them. Never more than half of the statements' time limit.
    pub patience: Duration,
    /// What happens after that.
    pub overrun: Overrun,
}

impl Default for FencePolicy {
    fn default() -> Self {
        Self { patience: Duration::from_millis(500), overrun: Overrun::Terminate }
    }
}

/// The policy, and how many grants may wait at a time: each occupies a connection.
#[derive(Debug)]
pub(crate) struct Fence {
    policy: FencePolicy,
    waiting: Semaphore,
}

impl Fence {
    /// At most half of the shared connections may be occupied by waiting.
    pub(crate) fn new(policy: FencePolicy, connections: usize) -> Self {
        Self { policy, waiting: Semaphore::new((connections / 2).max(1)) }
    }

    /// The policy, fitted into the statements' time limit.
    pub(crate) fn passing(&self, limit: Duration) -> Passing {
        let FencePolicy { patience, overrun } = self.policy;
        // Half of the statement's time for patience, a quarter after terminations (twice an eighth), the rest in
        // reserve.
        let ms = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        Passing {
            patience_ms: ms(patience.min(limit / 2)),
            force_ms: (overrun == Overrun::Terminate).then_some(ms(limit / 8)),
        }
    }

    /// Permission to wait. Each one is returned in bounded time. Never `None`, because the semaphore is never closed.
    pub(crate) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.waiting.acquire().await.ok()
    }
}

/// How a statement waits for fenced transactions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passing {
    /// How long to wait, in milliseconds.
    pub(crate) patience_ms: i32,
    /// How long to wait after terminating those that take longer, in milliseconds. `None`: they are not terminated.
    pub(crate) force_ms: Option<i32>,
}

/// Logs why fenced transactions still delay a change of holder.
pub(crate) fn report(row: &Row, key: &Key) -> Result<(), LockError> {
    let blockers = get::<Option<&str>>(row, "blockers")?.unwrap_or("unknown");
    match get::<Option<&str>>(row, "gate")? {
        Some("forbidden") => tracing::warn!(
            %key,
            blockers,
            "transactions of the old holder delay the change of holder, and this role may not terminate them; grant \
             it membership in the application's role, or in pg_signal_backend"
        ),
        Some("closed") => {
            tracing::warn!(%key, blockers, "transactions still delay the change of holder");
        }
        _ => {}
    }
    Ok(())
}
