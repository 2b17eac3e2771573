//! Fencing on the side of the program: how a change of holder handles open transactions of the old holder.
//!
//! An application calls `leadergroup.fence(key, token)` first in a transaction. Until that transaction ends, no grant
//! of the key takes effect; this module decides how long that may take. The mechanism itself is SQL
//! (`migrations/0004_fence.sql`); `docs/fencing.md` explains it.

use std::time::Duration;

use sqlx::postgres::PgRow;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::get;
use crate::{Key, LockError, Store};

/// A fence for data that is kept in another database than the lock: SQL that makes the function
/// `leadergroup.fence_seen(key, token)` there. May be run again.
pub const FENCE_SEEN_SQL: &str = include_str!("install/fence_seen.sql");

/// What happens to a fenced transaction of the old holder that does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// The server terminates its connection, so that nothing of it is committed. Needs the right to do so: the role of
    /// the lock has to be a member of the application's role, or of `pg_signal_backend`.
    Terminate,
    /// The change of holder waits for as long as the transaction takes, however long that is: it is refused with
    /// [`Refusal::Busy`](crate::Refusal::Busy), to be tried again.
    Wait,
}

/// For how long fenced transactions of the old holder may hold a change of holder up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FencePolicy {
    /// How long a change waits for them. Never more than half of the statements' time limit.
    pub patience: Duration,
    /// What happens then.
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
    places: usize,
}

impl Fence {
    /// At most half of the shared connections may be occupied by waiting.
    pub(crate) fn new(policy: FencePolicy, connections: usize) -> Self {
        let places = (connections / 2).max(1);
        Self { policy, waiting: Semaphore::new(places), places }
    }

    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// The right to wait. Others that have it give it back in bounded time. `None` never happens: it is never closed.
    pub(crate) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.waiting.acquire().await.ok()
    }
}

/// How a statement waits for fenced transactions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passing {
    /// For how long.
    pub(crate) patience_ms: i32,
    /// How long terminating those that take longer may take; they are not terminated if `None`.
    pub(crate) force_ms: Option<i32>,
}

impl Store {
    /// The same store with another policy. The default is to terminate fenced transactions after half a second.
    #[must_use]
    pub fn with_fence_policy(self, policy: FencePolicy) -> Self {
        let fence = Fence::new(policy, self.pool.work_connections());
        Self { fence: std::sync::Arc::new(fence), batches: crate::store::Batches::default(), ..self }
    }

    /// What the policy comes to with the statements' time limit.
    pub(crate) fn passing(&self) -> Passing {
        let FencePolicy { patience, overrun } = self.fence.policy;
        // Half of the statement's time for patience, a quarter for ending the others (twice an eighth), the rest in reserve.
        let limit = self.pool.limit();
        let ms = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        Passing {
            patience_ms: ms(patience.min(limit / 2)),
            force_ms: (overrun == Overrun::Terminate).then_some(ms(limit / 8)),
        }
    }
}

/// Says why fenced transactions still hold a change up.
pub(crate) fn report(row: &PgRow, key: &Key) -> Result<(), LockError> {
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
