//! Locks for any program: take a key, or wait for it, and know when it is lost.
//!
//! A [`Client`] is one process with one session; a task in the background keeps it alive, watches the others' and marks
//! those dead that do not move. All keys that it holds cost one heartbeat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::guard::{Guard, Term};
use super::{
    Acquired, Belief, GrantId, Key, LockError, Observer, Owner, Refusal, SessionId, Store, Wish, monotonic,
};

/// How a client keeps its session.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// What the holder is called in tables and in the history.
    pub name: String,
    /// After this long without a heartbeat the client's keys go to others. It stops believing in them before that.
    pub ttl: Duration,
    /// Time between two heartbeats; at most a third of `ttl`. Waiters look as often whether it is their turn, besides being
    /// woken.
    pub retry_interval: Duration,
    /// Kept in the history.
    pub reason: String,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            name: "unnamed".to_owned(),
            ttl: Duration::from_secs(5),
            retry_interval: Duration::from_secs(1),
            reason: "asked for it".to_owned(),
        }
    }
}

/// Why a key was not to be had.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Others held it, or waited for it, until the time was up.
    #[error("the lock {key:?} was not to be had within {waited:?}: others hold it")]
    Deadline {
        /// The key.
        key: String,
        /// For how long it was waited for.
        waited: Duration,
    },
    /// The key cannot be used.
    #[error("the lock {key:?} cannot be taken: {why}")]
    Refused {
        /// The key.
        key: String,
        /// Why.
        why: String,
    },
    /// The database.
    #[error(transparent)]
    Lock(#[from] LockError),
}

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

/// What the client, its guards and its background tasks share.
pub(super) struct Shared {
    pub(super) store: Store,
    config: ClientConfig,
    pub(super) lease: watch::Sender<Lease>,
    /// Those who wait for their turn, by request.
    turns: Mutex<HashMap<uuid::Uuid, Arc<Notify>>>,
    /// Guards may be dropped outside of the runtime.
    pub(super) runtime: tokio::runtime::Handle,
}

/// A program that holds locks. Cheap to clone; a clone is the same owner, and may take a key that the owner holds already.
/// Dropping the last one ends the background tasks; [`shutdown`](Self::shutdown) also frees everything at once.
///
/// ```no_run
/// # async fn example(store: leadergroup::lock::Store) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use leadergroup::lock::{Client, ClientConfig, Key};
///
/// let config = ClientConfig { name: "report-writer".into(), ..ClientConfig::default() };
/// let client = Client::connect(store, config).await?;
/// let guard = client.lock(&Key::new("nightly-report")?, Duration::from_secs(60)).await?;
/// tokio::select! {
///     () = guard.lost() => eprintln!("stop: somebody else may be at work"),
///     () = work(guard.token().get()) => {}
/// }
/// guard.release().await?;
/// client.shutdown().await?;
/// # Ok(())
/// # }
/// # async fn work(token: i64) {}
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    owner: Owner,
    /// What this owner holds. The guards keep the terms alive.
    held: Arc<Mutex<HashMap<Key, Weak<Term>>>>,
    tasks: Arc<Tasks>,
}

/// Ends the background tasks with the last client.
struct Tasks([tokio::task::JoinHandle<()>; 2]);

impl Tasks {
    fn end(&self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Client {
    /// Registers a session and begins to keep it.
    pub async fn connect(store: Store, config: ClientConfig) -> Result<Self, LockError> {
        if config.retry_interval.is_zero() || config.retry_interval * 3 > config.ttl {
            return Err(LockError::Config {
                key: "retryInterval",
                problem: "must be above zero, and at most a third of ttl".to_owned(),
            });
        }
        let lease = begin(&store, &config).await?;
        let owner = Owner {
            uid: uuid::Uuid::new_v4().to_string(),
            namespace: "program".to_owned(),
            name: config.name.clone(),
        };
        let shared = Arc::new(Shared {
            store,
            config,
            lease: watch::Sender::new(lease),
            turns: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        let tasks = [tokio::spawn(keep(Arc::clone(&shared))), tokio::spawn(listen(Arc::clone(&shared)))];
        Ok(Self { shared, owner, held: Arc::default(), tasks: Arc::new(Tasks(tasks)) })
    }

    /// Another owner in the same process, with the same session: it has to wait for keys that this one holds.
    #[must_use]
    pub fn another_owner(&self, name: &str) -> Self {
        let owner =
            Owner { uid: uuid::Uuid::new_v4().to_string(), name: name.to_owned(), ..self.owner.clone() };
        Self { owner, held: Arc::default(), ..self.clone() }
    }

    /// Takes the key if nobody holds it and nobody waits for it. A key that this owner holds already is held once more.
    pub async fn try_lock(&self, key: &Key) -> Result<Option<Guard>, ClientError> {
        if let Some(guard) = self.again(key) {
            return Ok(Some(guard));
        }
        let lease = *self.shared.lease.borrow();
        let wish = self.wish(key);
        let unfinished =
            Unfinished { shared: &self.shared, session: lease.session, wish: &wish, armed: true };
        let acquired = self.shared.store.try_hold(lease.session, &wish).await?;
        self.settle(unfinished, acquired)
    }

    /// Waits until it is this owner's turn, first come, first served, but not for longer than `patience`. A key that this
    /// owner holds already is held once more. While the database cannot be reached, it is tried again. May be dropped at
    /// any time: the place in the queue is given up then.
    pub async fn lock(&self, key: &Key, patience: Duration) -> Result<Guard, ClientError> {
        match timeout(patience, self.wait_for(key)).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Deadline { key: key.to_string(), waited: patience }),
        }
    }

    async fn wait_for(&self, key: &Key) -> Result<Guard, ClientError> {
        loop {
            // Once for each session: a place in the queue is lost with it.
            let lease = *self.shared.lease.borrow();
            let wish = self.wish(key);
            let turn = Turn::new(&self.shared, wish.request);
            let mut unfinished =
                Some(Unfinished { shared: &self.shared, session: lease.session, wish: &wish, armed: true });
            while self.shared.lease.borrow().session == lease.session {
                if let Some(guard) = self.again(key) {
                    return Ok(guard);
                }
                let pause = match self.shared.store.queue_for(lease.session, &wish).await {
                    Ok(Acquired::Waiting | Acquired::Held) => self.shared.config.retry_interval,
                    Ok(Acquired::Refused(Refusal::Busy | Refusal::SessionDead)) => {
                        self.shared.config.retry_interval / 10
                    }
                    Ok(acquired) => {
                        let Some(unfinished) = unfinished.take() else { break };
                        match self.settle(unfinished, acquired)? {
                            Some(guard) => return Ok(guard),
                            None => break,
                        }
                    }
                    Err(error) if error.is_temporary() => self.shared.config.retry_interval,
                    Err(error) => return Err(error.into()),
                };
                // Not all at the same moment.
                let jitter = f64::from(u32::from(wish.request.as_uuid().as_bytes()[0])) / 1024.0;
                let _ = timeout(pause.mul_f64(1.0 + jitter), turn.notify.notified()).await;
            }
            drop(unfinished);
            let mut renewed = self.shared.lease.subscribe();
            // The session is gone; the background task makes another one. The sender lives as long as this.
            let _ = renewed.wait_for(|now| now.session != lease.session).await;
        }
    }

    /// A guard for what was granted, if it is still worth something.
    fn settle(
        &self,
        mut unfinished: Unfinished<'_>,
        acquired: Acquired,
    ) -> Result<Option<Guard>, ClientError> {
        let refused = |why: String| ClientError::Refused { key: unfinished.wish.key.to_string(), why };
        match acquired {
            Acquired::Granted { token } => {
                if !self.shared.lease.borrow().covers(unfinished.session) {
                    return Ok(None);
                }
                unfinished.armed = false;
                let term = Arc::new(Term::new(
                    Arc::clone(&self.shared),
                    unfinished.session,
                    unfinished.wish.key.clone(),
                    token,
                ));
                let mut held = self.held();
                held.retain(|_, term| term.strong_count() > 0);
                held.insert(unfinished.wish.key.clone(), Arc::downgrade(&term));
                Ok(Some(Guard::new(term)))
            }
            Acquired::Held | Acquired::Waiting | Acquired::Refused(Refusal::Busy | Refusal::SessionDead) => {
                Ok(None)
            }
            Acquired::Refused(Refusal::Foreign { group }) => {
                Err(refused(format!("it belongs to the group {group}; choose another key")))
            }
            Acquired::Refused(Refusal::Tombstone) => {
                Err(refused("it belonged to a group that was deleted; choose another key".to_owned()))
            }
            Acquired::Refused(Refusal::ProtocolNewer { .. }) => {
                Err(refused("a newer version of this library wrote it; use that version".to_owned()))
            }
            Acquired::Refused(other) => Err(refused(format!("unexpected answer: {other:?}"))),
        }
    }

    /// The key, if this owner holds it already.
    fn again(&self, key: &Key) -> Option<Guard> {
        let term = self.held().get(key).and_then(Weak::upgrade)?;
        let guard = Guard::new(term);
        (!guard.is_lost()).then_some(guard)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Key, Weak<Term>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wish(&self, key: &Key) -> Wish {
        Wish {
            key: key.clone(),
            owner: self.owner.clone(),
            request: GrantId::new(),
            reason: self.shared.config.reason.clone(),
        }
    }

    /// Ends the session: everything that is held or waited for by any owner of this process is free at once.
    pub async fn shutdown(self) -> Result<(), LockError> {
        self.tasks.end();
        self.shared.lease.send_modify(|lease| lease.belief.lost());
        let session = self.shared.lease.borrow().session;
        self.shared.store.close(session).await?;
        Ok(())
    }
}

/// A wish that may have been granted without anybody knowing: when this is dropped it is taken back.
struct Unfinished<'a> {
    shared: &'a Arc<Shared>,
    session: SessionId,
    wish: &'a Wish,
    armed: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (shared, session) = (Arc::clone(self.shared), self.session);
        let (key, request) = (self.wish.key.clone(), self.wish.request);
        self.shared.runtime.spawn(async move {
            shared.insist(session, async || shared.store.give_up(session, &key, request).await).await;
        });
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

    fn turns(&self) -> MutexGuard<'_, HashMap<uuid::Uuid, Arc<Notify>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place where the word that it is one's turn is left.
struct Turn<'a> {
    shared: &'a Shared,
    request: uuid::Uuid,
    notify: Arc<Notify>,
}

impl<'a> Turn<'a> {
    fn new(shared: &'a Shared, request: GrantId) -> Self {
        let notify = Arc::new(Notify::new());
        shared.turns().insert(request.as_uuid(), Arc::clone(&notify));
        Self { shared, request: request.as_uuid(), notify }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.turns().remove(&self.request);
    }
}

/// Passes on whose turn it is.
async fn listen(shared: Arc<Shared>) {
    let mut turns = std::pin::pin!(shared.store.listen_for_turns());
    while let Some(turn) = turns.next().await {
        let waiting = shared.turns();
        match turn {
            Some(request) => waiting.get(&request).into_iter().for_each(|turn| turn.notify_one()),
            None => waiting.values().for_each(|turn| turn.notify_one()),
        }
    }
}

async fn begin(store: &Store, config: &ClientConfig) -> Result<Lease, LockError> {
    let attempt = monotonic();
    let session = store.register(&config.name, config.ttl).await?;
    // Clocks that run at different rates, and the time that it takes to notice: a fifth, never less than the timers' grain.
    let mut belief = Belief::new(config.ttl, (config.ttl / 5).max(Duration::from_millis(10)));
    belief.renewed(attempt);
    Ok(Lease { session, belief })
}

/// Keeps the session alive, and finds out which others are not.
async fn keep(shared: Arc<Shared>) {
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
                    Ok(dead) if !dead.is_empty() => {
                        shared.turns().values().for_each(|turn| turn.notify_one());
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "a dead session could not be marked; trying again"),
                }
            }
            Ok(beat) => {
                if beat.alive {
                    // Others may have what it held, sooner than after its ttl.
                    let _ = shared.store.close(session).await;
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
