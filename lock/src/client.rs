//! Locks for any program: take a key, or wait for it, and know when it is lost.
//!
//! A [`Client`] is one process with one session; a task in the background keeps it alive, watches the others' and marks
//! those dead that do not move. All keys that it holds cost one heartbeat.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::doubt::{Terms, doubt};
use super::guard::{Guard, Term};
use super::keeper::{Lease, begin, check, keep};
use super::remains::{Wishes, clear};
use super::spans::{trying, waiting, within};
use super::stats::Attempt;
use super::tidy::tidy_for_programs;
use super::waiting::{Delays, Turns, Unfinished, listen};
use super::{Acquired, Epoch, Key, LockError, MOST_WAITERS, Obstacle, Owner, Refusal, Store, Wish};

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
    /// For how long nobody gets a key after this client's session was marked dead while it held it: work that was under way
    /// may have effects that come late. Measured by those who wait, from when they learn of it. A release and a
    /// [`shutdown`](Client::shutdown) hand over at once.
    pub lock_delay: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            name: "unnamed".to_owned(),
            ttl: Duration::from_secs(5),
            retry_interval: Duration::from_secs(1),
            reason: "asked for it".to_owned(),
            lock_delay: Duration::ZERO,
        }
    }
}

/// Why a key was not to be had.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The time was up.
    #[error("the lock {key:?} was not to be had within {waited:?}: {obstacle}")]
    Deadline {
        /// The key.
        key: String,
        /// For how long it was waited for.
        waited: Duration,
        /// Why, as far as the last answer said.
        obstacle: Obstacle,
    },
    /// Too many wait for it.
    #[error("the lock {key:?} cannot be waited for: {MOST_WAITERS} wait for it already; try again later")]
    QueueFull {
        /// The key.
        key: String,
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

/// What the client, its guards and its background tasks share.
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) config: ClientConfig,
    pub(super) lease: watch::Sender<Lease>,
    /// As wanted; `config` has the one of the beginning.
    pub(super) ttl: Mutex<Duration>,
    /// Held while the row's ttl is being changed, or a session with it begins.
    pub(super) changing_ttl: tokio::sync::Mutex<()>,
    /// Whether it is this session's turn to tidy the tables up.
    pub(super) tidies: AtomicBool,
    pub(super) turns: Turns,
    pub(super) terms: Terms,
    pub(super) wishes: Wishes,
    pub(super) delays: Delays,
    /// Guards may be dropped outside of the runtime.
    pub(super) runtime: tokio::runtime::Handle,
}

/// A program that holds locks. Cheap to clone; a clone is the same owner, and may take a key that the owner holds already.
/// Dropping the last one ends the background tasks; [`shutdown`](Self::shutdown) also frees everything at once.
///
/// ```no_run
/// # async fn example(store: leadergroup_lock::Store) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use leadergroup_lock::{Client, ClientConfig, Key};
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
    pub(super) shared: Arc<Shared>,
    owner: Owner,
    /// What this owner holds. The guards keep the terms alive.
    held: Arc<Mutex<HashMap<Key, Weak<Term>>>>,
    tasks: Arc<Tasks>,
}

/// Ends the background tasks with the last client.
struct Tasks([tokio::task::JoinHandle<()>; 5]);

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
        check(config.ttl, config.retry_interval)?;
        let lease = begin(&store, &config.name, config.ttl).await?;
        let owner = Owner {
            uid: uuid::Uuid::new_v4().to_string(),
            namespace: "program".to_owned(),
            name: config.name.clone(),
        };
        let shared = Arc::new(Shared {
            store,
            ttl: Mutex::new(config.ttl),
            changing_ttl: tokio::sync::Mutex::default(),
            config,
            lease: watch::Sender::new(lease),
            tidies: AtomicBool::new(false),
            turns: Turns::default(),
            terms: Terms::default(),
            wishes: Wishes::default(),
            delays: Delays::default(),
            runtime: tokio::runtime::Handle::current(),
        });
        let tasks = [
            tokio::spawn(keep(Arc::clone(&shared))),
            tokio::spawn(listen(Arc::clone(&shared))),
            tokio::spawn(doubt(Arc::clone(&shared))),
            tokio::spawn(clear(Arc::clone(&shared))),
            tokio::spawn(tidy_for_programs(Arc::clone(&shared))),
        ];
        Ok(Self { shared, owner, held: Arc::default(), tasks: Arc::new(Tasks(tasks)) })
    }

    /// Another owner in the same process, with the same session: it has to wait for keys that this one holds.
    #[must_use]
    pub fn another_owner(&self, name: &str) -> Self {
        let owner =
            Owner { uid: uuid::Uuid::new_v4().to_string(), name: name.to_owned(), ..self.owner.clone() };
        Self { owner, held: Arc::default(), ..self.clone() }
    }

    /// Another ttl from now on, for the session and so for all its keys; who needs two at a time needs two clients. It must
    /// be at least three times the `retry_interval`, which stays as it is.
    ///
    /// A shorter one counts for the guards before the database is told, a longer one after it has answered. After an error
    /// the guards go by the shorter of the two, and the change is repeated with the heartbeats until it is done.
    ///
    /// ```no_run
    /// # async fn example(client: leadergroup_lock::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// // Something slow comes, in which this process may not get to its heartbeats.
    /// client.set_ttl(Duration::from_secs(60)).await?;
    /// // It is over; let others take over sooner again should this process fail.
    /// client.set_ttl(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        self.shared.set_ttl(ttl).await
    }

    /// Takes the key if nobody holds it and nobody waits for it. A key that this owner holds already is held once more. Never
    /// waits for others who want the key: while somebody else is about to take it, it is not to be had. Only fenced transactions
    /// of its last holder are waited for, for as long as the [`FencePolicy`](super::FencePolicy) says.
    pub async fn try_lock(&self, key: &Key) -> Result<Option<Guard>, ClientError> {
        Ok(self.try_lock_or_why(key).await?.ok())
    }

    /// The same, and what stood in the way if the key was not to be had.
    pub async fn try_lock_or_why(&self, key: &Key) -> Result<Result<Guard, Obstacle>, ClientError> {
        within(trying(key, &self.owner), self.take(key)).await
    }

    async fn take(&self, key: &Key) -> Result<Result<Guard, Obstacle>, ClientError> {
        if let Some(guard) = self.again(key) {
            return Ok(Ok(guard));
        }
        let mut attempt = Attempt::begin(&self.shared.store.counters);
        let lease = *self.shared.lease.borrow();
        if lease.closed {
            return Err(LockError::SessionDead.into());
        }
        let wish = Wish { delay_over: self.shared.delays.over(key), ..self.wish(key) };
        let mut unfinished = Unfinished::new(&self.shared, lease.session, key, wish.request);
        let acquired = unfinished.ask(self.shared.store.try_hold(lease.session, &wish)).await?;
        let obstacle = Obstacle::of(&acquired, self.shared.store.settled.load(Ordering::Relaxed));
        let guard = self.settle(unfinished, lease.epoch, acquired)?;
        if guard.is_some() {
            attempt.won();
        }
        Ok(guard.ok_or(obstacle))
    }

    /// Waits until it is this owner's turn, first come, first served, but not for longer than `patience`. A key that this
    /// owner holds already is held once more. While the database cannot be reached, it is tried again; the error at the end
    /// says so. May be dropped at any time: the place in the queue is given up then.
    pub async fn lock(&self, key: &Key, patience: Duration) -> Result<Guard, ClientError> {
        within(waiting(key, &self.owner), self.wait_at_most(key, patience)).await
    }

    async fn wait_at_most(&self, key: &Key, patience: Duration) -> Result<Guard, ClientError> {
        if let Some(guard) = self.again(key) {
            return Ok(guard);
        }
        let mut attempt = Attempt::begin(&self.shared.store.counters);
        let mut obstacle = Obstacle::NoAnswer;
        let waited = timeout(patience, self.wait_for(key, &mut attempt, &mut obstacle)).await;
        if matches!(waited, Ok(Ok(_))) {
            attempt.won();
        }
        match waited {
            Ok(result) => result,
            Err(_) => Err(ClientError::Deadline { key: key.to_string(), waited: patience, obstacle }),
        }
    }

    /// A guard for what was granted, if it is still worth something. `asked_in`: the history that was known before.
    pub(super) fn settle(
        &self,
        mut unfinished: Unfinished,
        asked_in: Epoch,
        acquired: Acquired,
    ) -> Result<Option<Guard>, ClientError> {
        let (session, key) = (unfinished.session, unfinished.key.clone());
        let refused = |why: String| ClientError::Refused { key: key.to_string(), why };
        match acquired {
            Acquired::Granted { token } => {
                self.shared.delays.forget(&key);
                if !self.shared.lease.borrow().covers(session) {
                    // Too late to be worth anything; it is taken back.
                    return Ok(None);
                }
                unfinished.disarm();
                tracing::debug!(%key, %token, owner = %self.owner.name, "the lock is held");
                let term = Arc::new(Term::new(
                    Arc::clone(&self.shared),
                    session,
                    key.clone(),
                    self.owner.name.clone(),
                    unfinished.request,
                    token,
                ));
                self.shared.terms.enter(unfinished.request, &term);
                if self.shared.wishes.was_heard_of(unfinished.request) {
                    // Somebody may have taken it away before it was looked after.
                    self.shared.terms.doubt();
                }
                // From now on it is looked at when the history changes. If that was just before, the grant may be lost.
                if self.shared.lease.borrow().epoch != asked_in {
                    return Ok(None);
                }
                let mut held = self.held();
                held.retain(|_, term| term.strong_count() > 0);
                held.insert(key, Arc::downgrade(&term));
                return Ok(Some(Guard::new(term)));
            }
            // In the queue, so there is something to take back.
            Acquired::Waiting => return Ok(None),
            Acquired::Delayed { token, delay } => {
                // Those who only try now and then sit it out as well.
                self.shared.delays.learn(&key, token, delay);
            }
            _ => {}
        }
        unfinished.disarm();
        match acquired {
            Acquired::QueueFull => Err(ClientError::QueueFull { key: key.to_string() }),
            Acquired::Refused(Refusal::Foreign { group }) => {
                Err(refused(format!("it belongs to the group {group}; choose another key")))
            }
            Acquired::Refused(Refusal::Tombstone) => {
                Err(refused("it belonged to a group that was deleted; choose another key".to_owned()))
            }
            Acquired::Refused(Refusal::ProtocolNewer { .. }) => {
                Err(refused("a newer version of this library wrote it; use that version".to_owned()))
            }
            Acquired::Refused(
                other @ (Refusal::TokenChanged { .. } | Refusal::NotOurs { .. } | Refusal::Missing),
            ) => Err(refused(format!("unexpected answer: {other:?}"))),
            _ => Ok(None),
        }
    }

    /// The key, if this owner holds it already.
    pub(super) fn again(&self, key: &Key) -> Option<Guard> {
        let term = self.held().get(key).and_then(Weak::upgrade)?;
        Guard::again(term)
    }

    /// What this client is called in tables and in the history, and whom a key is [handed over](Guard::hand_over_to) to.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Key, Weak<Term>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wish(&self, key: &Key) -> Wish {
        let config = &self.shared.config;
        let wish = Wish::new(key.clone(), self.owner.clone(), config.reason.clone());
        Wish { lock_delay: config.lock_delay, ..wish }
    }

    /// Ends the session: everything that is held or waited for by any owner of this process is free at once. Clones get no
    /// lock any more, but [`LockError::SessionDead`].
    pub async fn shutdown(self) -> Result<(), LockError> {
        self.tasks.end();
        let lease = *self.shared.lease.borrow();
        self.shared.lease.send_modify(|lease| {
            lease.belief.lost();
            lease.closed = true;
        });
        self.shared.turns.wake_all();
        if lease.covers(lease.session) {
            self.shared.store.close(lease.session).await?;
        } else {
            // It may be too late to end in order.
            self.shared.store.abandon(lease.session).await?;
        }
        Ok(())
    }
}
