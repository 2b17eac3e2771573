//! The background task of a client: keeps its session alive, and finds out which others are not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::client::{ClientConfig, Shared};
use super::{Belief, LockError, Observer, SessionId, Store, monotonic};

/// The session as its holders see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) session: SessionId,
    pub(super) belief: Belief,
}

impl Lease {
    /// Whether what was taken by `session` is surely still held.
    pub(super) fn covers(&self, session: SessionId) -> bool {
        self.session == session && self.belief.holds(monotonic())
    }
}

impl Shared {
    /// Tries until it is done. Once the session is gone there is nothing left to do.
    pub(super) async fn insist<T, F>(&self, session: SessionId, action: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, LockError>>,
    {
        while self.lease.borrow().session == session {
            match action().await {
                Ok(done) => return Some(done),
                Err(error) => {
                    tracing::debug!(%error, "giving a key up; trying again");
                    sleep(self.config.retry_interval).await;
                }
            }
        }
        None
    }
}

/// Registers a session.
pub(super) async fn begin(store: &Store, config: &ClientConfig) -> Result<Lease, LockError> {
    let attempt = monotonic();
    let session = store.register(&config.name, config.ttl).await?;
    // Clocks that run at different rates, and the time that it takes to notice: a fifth, never less than the timers' grain.
    let mut belief = Belief::new(config.ttl, (config.ttl / 5).max(Duration::from_millis(10)));
    belief.renewed(attempt);
    Ok(Lease { session, belief })
}

/// Runs for as long as there is a client.
pub(super) async fn keep(shared: Arc<Shared>) {
    let interval = shared.config.retry_interval;
    let mut observer = Observer::new(interval);
    loop {
        sleep(interval).await;
        let session = shared.lease.borrow().session;
        let attempt = monotonic();
        match shared.store.beat(session).await {
            // An answer that comes after the belief ended is too late: the guards have said that they are lost.
            Ok(beat) if beat.alive && shared.lease.borrow().covers(session) => {
                shared.lease.send_modify(|lease| lease.belief.renewed(attempt));
                let expired = observer.observe(monotonic(), attempt, &beat);
                match shared.store.mark_dead(&expired).await {
                    Ok(dead) if !dead.is_empty() => shared.turns.wake_all(),
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "a dead session could not be marked; trying again"),
                }
            }
            Ok(beat) => {
                if beat.alive {
                    // Others may have what it held sooner than after its ttl, but not before the delay that was asked for.
                    let _ = shared.store.abandon(session).await;
                }
                match begin(&shared.store, &shared.config).await {
                    Ok(lease) => {
                        tracing::warn!(%session, "the session was lost, and all locks with it; a new one begins");
                        shared.lease.send_replace(lease);
                    }
                    Err(error) => tracing::warn!(%error, "no new session; trying again"),
                }
            }
            Err(error) => tracing::debug!(%error, "no heartbeat; trying again"),
        }
    }
}
