//! The state of one process: its session and lease, the keys that it holds, and the keys that it waits for. It knows
//! neither who holds them nor who waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::session::lease::Lease;
use crate::session::outlook::Lookout;
use crate::session::reconcile::Terms;
use crate::session::settings::{SessionConfig, check, survives_a_hanging_heartbeat};
use crate::session::turns::{Delays, Turns};
use crate::{LockError, SessionId, Store};

/// The longest time between two comparisons.
const SLOW_LOOK: Duration = Duration::from_mins(2);
/// The shortest time between two comparisons.
const BREATH: Duration = Duration::from_millis(100);

/// Shared by a client, its guards, its waiters, and the heartbeat.
pub(crate) struct Process {
    pub(crate) store: Store,
    pub(crate) config: SessionConfig,
    pub(crate) lease: watch::Sender<Lease>,
    pub(crate) terms: Terms,
    pub(crate) lookout: Lookout,
    pub(crate) turns: Turns,
    pub(crate) delays: Delays,
    pub(crate) watched: Watched,
    /// Guards may be dropped outside of the runtime.
    pub(crate) runtime: Handle,
}

impl Process {
    /// Registers a session.
    pub(crate) async fn register(store: Store, config: SessionConfig) -> Result<Self, LockError> {
        check(config.ttl, config.retry_interval)?;
        let pool = &store.database.pool;
        if !survives_a_hanging_heartbeat(config.ttl, config.retry_interval, pool.patience()) {
            tracing::warn!(
                statement_timeout = ?pool.limit(),
                retry_interval = ?config.retry_interval,
                ttl = ?config.ttl,
                "`retry_interval` and `statement_timeout` together are not below four fifths of `ttl`: a single heartbeat \
                 that hangs may lose the session and its keys; choose a shorter statement_timeout, or a longer ttl"
            );
        }
        let lease = register(&store, &config).await?;
        Ok(Self {
            store,
            config,
            lease: watch::Sender::new(lease),
            terms: Terms::default(),
            lookout: Lookout::default(),
            turns: Turns::default(),
            delays: Delays::default(),
            watched: Watched::default(),
            runtime: Handle::current(),
        })
    }

    /// The time on the store's clock.
    pub(crate) fn now(&self) -> Duration {
        self.store.clock().now()
    }

    /// Whether it is certain that this session still holds its keys.
    pub(crate) fn covers(&self, session: SessionId) -> bool {
        self.lease.borrow().covers(session, self.now())
    }

    /// Repeats an action until it succeeds. Stops once the session is dead or its lease has ended: the session is then
    /// not kept alive, and its keys are freed with it.
    pub(crate) async fn insist<T, F>(&self, session: SessionId, action: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, LockError>>,
    {
        while self.lease.borrow().session == session {
            match action().await {
                Ok(done) => return Some(done),
                Err(error) if !self.covers(session) => {
                    tracing::debug!(%error, "a key was not released; it becomes free with the session");
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%error, "a key was not released; trying again");
                    sleep(self.config.retry_interval).await;
                }
            }
        }
        None
    }

    /// Stops the heartbeat; no other session is registered. The present lease still runs until its end.
    pub(crate) fn stop(&self) {
        self.lease.send_modify(|lease| lease.closed = true);
        self.turns.wake_all_at_once();
    }

    /// Like [`stop`](Self::stop), and ends the lease as well.
    pub(crate) fn close(&self) {
        self.end_lease();
        self.stop();
    }

    /// Ends the lease, and with it everything that is held.
    pub(crate) fn end_lease(&self) {
        // In this order, so that each term shows when the lease ended if that was before now.
        self.terms.end();
        self.lease.send_modify(crate::session::lease::Lease::end);
    }
}

/// Compares the held terms with the database when asked to, and at a slow interval. Runs until it is dropped.
pub(crate) async fn reconcile(process: Arc<Process>) {
    loop {
        process.terms.doubted(SLOW_LOOK).await;
        loop {
            let era = process.lease.borrow().era;
            match process.terms.reconcile(&process.store, era).await {
                // Makes those that wait for a loss check again.
                Ok(true) => break process.lease.send_modify(|_| {}),
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "the held keys could not be checked; trying again");
                    sleep(process.config.retry_interval).await;
                }
            }
        }
        sleep(BREATH).await;
    }
}

/// Registers a new session and returns its lease.
pub(crate) async fn register(store: &Store, config: &SessionConfig) -> Result<Lease, LockError> {
    let (peers, place) = (config.peers.as_deref(), config.place.as_deref());
    let (session, era, sent) = store.register_at(&config.name, config.ttl, peers, place).await?;
    Ok(Lease::begin(session, era, config.ttl, sent))
}

/// Sessions to watch besides neighbours and peers: the holders of keys that this process waits for.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<BTreeMap<SessionId, usize>>);

impl Watched {
    pub(crate) fn add(&self, session: SessionId) {
        *self.0.lock().entry(session).or_default() += 1;
    }

    pub(crate) fn remove(&self, session: SessionId) {
        let mut all = self.0.lock();
        if let Some(count) = all.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                all.remove(&session);
            }
        }
    }

    pub(crate) fn list(&self) -> Vec<SessionId> {
        self.0.lock().keys().copied().collect()
    }
}
