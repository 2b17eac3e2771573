//! Fencing, the program's side: what a change of holder does about transactions of the old holder that are under way.
//!
//! An application calls `leadergroup.fence(key, token)` first in a transaction. Until that transaction ends, no grant of
//! the key takes effect; this file decides for how long that may be. The mechanism itself is SQL
//! (`migrations/0002_fence.sql`, and `sql/grant.sql` for the other side); `docs/fencing.md` explains it.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::Semaphore;

use super::store::get;
use super::{Grant, Granted, LockError, Refusal, SessionId, Store};

/// A fence for data that is kept in another database than the lock: SQL that makes the function
/// `leadergroup.fence_seen(key, token)` there. May be run again.
pub const FENCE_SEEN_SQL: &str = include_str!("install/fence_seen.sql");

/// What happens to a fenced transaction of the old holder that does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// Its connection is ended by the server, so that nothing of it is committed. Needs the right to do so: the role of
    /// the lock has to be a member of the application's role, or of `pg_signal_backend`.
    Terminate,
    /// The change of holder waits for as long as the transaction takes, however long that is: it is refused with
    /// [`Refusal::Busy`], to be tried again.
    Wait,
}

/// For how long fenced transactions of the old holder may hold a change of holder off.
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
pub(super) struct Fence {
    policy: FencePolicy,
    waiting: Semaphore,
    places: usize,
}

impl Fence {
    /// At most half of the shared connections may be occupied by waiting.
    pub(super) fn new(policy: FencePolicy, connections: usize) -> Self {
        let places = (connections / 2).max(1);
        Self { policy, waiting: Semaphore::new(places), places }
    }
}

/// How a grant waits for fenced transactions, in the statement's terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passing {
    /// For how long.
    pub(super) patience_ms: i32,
    /// How long ending those that take longer may take; they are not ended if `None`.
    pub(super) force_ms: Option<i32>,
}

/// What became of one grant of a batch.
pub(super) enum Tried {
    /// Granted or refused.
    Settled(Granted),
    /// A fenced transaction of the old holder is under way, or was at that moment, or somebody else has the row locked, or the
    /// server has no lock left for it; nothing was changed.
    Fenced,
}

impl Store {
    /// The same store with another policy. The default is to end fenced transactions after half a second.
    #[must_use]
    pub fn with_fence_policy(self, policy: FencePolicy) -> Self {
        let fence = Fence::new(policy, self.pool.work_connections());
        Self { fence: std::sync::Arc::new(fence), ..self }
    }

    /// Grants that met fenced transactions: each key waits by itself, so that none waits for another key's transactions
    /// longer than for a connection, and no two keys are waited for at once (an application may fence both).
    pub(super) async fn grant_fenced(
        &self,
        own: SessionId,
        grants: Vec<(usize, Grant)>,
    ) -> Result<Vec<(usize, Granted)>, LockError> {
        futures::stream::iter(grants)
            .map(|(place, grant)| async move { Ok((place, self.pass_fence(own, &grant).await?)) })
            .buffer_unordered(self.fence.places)
            .try_collect()
            .await
    }

    /// What the policy comes to with the statements' time limit.
    pub(super) fn passing(&self) -> Passing {
        let FencePolicy { patience, overrun } = self.fence.policy;
        // Half of the statement's time for patience, a quarter for ending the others (twice an eighth), the rest in reserve.
        let limit = self.pool.limit();
        let ms = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        Passing {
            patience_ms: ms(patience.min(limit / 2)),
            force_ms: (overrun == Overrun::Terminate).then_some(ms(limit / 8)),
        }
    }

    async fn pass_fence(&self, own: SessionId, grant: &Grant) -> Result<Granted, LockError> {
        // Never closed. Other calls of this program may have taken the places; they give them back in bounded time.
        let place = self.fence.waiting.acquire().await;
        let passing = self.passing();
        let tried = self.grant_chunk(own, std::slice::from_ref(grant), Some(passing)).await;
        drop(place);
        Ok(match tried?.pop() {
            Some(Tried::Settled(granted)) => granted,
            Some(Tried::Fenced) | None => Granted::Refused(Refusal::Busy),
        })
    }
}

/// Says why fenced transactions still hold a change off.
pub(super) fn report(row: &sqlx::postgres::PgRow, grant: &Grant) -> Result<(), LockError> {
    match get::<Option<&str>>(row, "gate")? {
        Some("forbidden") => tracing::warn!(
            key = %grant.key,
            "a transaction of the old holder holds the change of holder off, and this role may not end it; grant it \
             membership in the application's role, or in pg_signal_backend"
        ),
        Some("closed") => {
            tracing::warn!(key = %grant.key, "a transaction of the old holder still holds the change of holder off");
        }
        _ => {}
    }
    Ok(())
}
