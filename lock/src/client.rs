//! Locks for any program: take a key, or wait for it, and know when it is lost.
//!
//! A [`Client`] is one process with one session; a task in the background keeps it alive, watches others and marks those
//! dead that have expired. All keys that it holds cost one heartbeat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::clock::monotonic;
use crate::guard::{Guard, Term};
use crate::heartbeat::Heartbeat;
use crate::listen::listen;
use crate::process::Process;
use crate::prune::housekeeping;
use crate::reconcile::reconcile;
use crate::stats::Attempt;
use crate::trace::{trying, waiting, within};
use crate::wait::{Unfinished, Waiter};
use crate::{
    AcquireRequest, EraId, Holder, Key, LockError, MOST_WAITERS, Reason, SessionConfig, Store, Token, Wait,
};

/// How a client keeps its session, and what it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// How long no other client gets a key after this client's session was marked dead while it held the key, because
    /// unfinished work may have late effects. Waiters measure it from when they notice the death. A release and a
    /// [`shutdown`](Client::shutdown) hand over at once.
    pub lock_delay: Duration,
    /// The longest time that a key may be held. Then it is [lost](Guard::lost). It is free for others when the guard is
    /// dropped, or else with the first heartbeat after a fifth of the ttl, whatever the holder does.
    pub max_hold: Option<Duration>,
    /// Whether the heartbeat runs in a thread of its own, with connections of its own. Then code that blocks the caller's
    /// runtime does not cost the lock.
    pub heartbeat_thread: bool,
    /// Whether a try, or a wait after its deadline, takes longer if a client must observe something before the key
    /// can be granted. If the holder has been silent for twice its ttl, this takes that ttl: the client observes the
    /// holder, marks it dead, and tries once more. In the [quarantine](crate::Quarantine) after a failover, it takes
    /// the longest ttl. Without this, programs that only try once and end never get such a key.
    pub confirm_death: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        let SessionConfig { name, ttl, retry_interval, .. } = SessionConfig::default();
        Self {
            name,
            ttl,
            retry_interval,
            reason: "asked for it".to_owned(),
            lock_delay: Duration::ZERO,
            max_hold: None,
            heartbeat_thread: false,
            confirm_death: true,
        }
    }
}

/// Why a key could not be acquired.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The time was over.
    #[error("the lock {key:?} could not be acquired within {waited:?}: {reason}")]
    Deadline {
        /// The key.
        key: String,
        /// For how long it was waited for.
        waited: Duration,
        /// Why, as far as the last answer said.
        reason: Reason,
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

/// A program that holds locks. Cheap to clone; a clone is the same holder, and may take a key that the holder has already.
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
    pub(crate) process: Arc<Process>,
    config: Arc<ClientConfig>,
    holder: Holder,
    /// What this holder has. The guards keep the terms alive.
    held: Arc<Mutex<HashMap<Key, Weak<Term>>>>,
    background: Arc<Background>,
}

/// Ends the background tasks with the last client.
struct Background {
    process: Arc<Process>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Background {
    fn drop(&mut self) {
        // Ends the heartbeat in a thread, too. Guards that are left can still release their keys.
        self.process.stop();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl Client {
    /// Registers a session and begins to keep it.
    pub async fn connect(store: Store, config: ClientConfig) -> Result<Self, LockError> {
        let ClientConfig { name, ttl, retry_interval, .. } = config.clone();
        let session = SessionConfig { name, peers: None, ttl, retry_interval };
        let process = Arc::new(Process::register(store, session).await?);
        let holder = Holder {
            uid: uuid::Uuid::new_v4().to_string(),
            namespace: "program".to_owned(),
            name: config.name.clone(),
        };
        let store = process.store.clone();
        let tasks = vec![
            keep(&process, config.heartbeat_thread)?,
            tokio::spawn(reconcile(Arc::clone(&process))),
            tokio::spawn(listen(Arc::clone(&process))),
            tokio::spawn(async move { housekeeping(&store).await }),
        ];
        let background = Arc::new(Background { process: Arc::clone(&process), tasks });
        Ok(Self { process, config: Arc::new(config), holder, held: Arc::default(), background })
    }

    /// Another holder in the same process, with the same session: it has to wait for keys that this one holds.
    #[must_use]
    pub fn another_holder(&self, name: &str) -> Self {
        let uid = uuid::Uuid::new_v4().to_string();
        let holder = Holder { uid, name: name.to_owned(), ..self.holder.clone() };
        Self { holder, held: Arc::default(), ..self.clone() }
    }

    /// Another ttl from now on, for the session and so for all its keys; a program that needs two at a time needs two
    /// clients. It must be at least three times the `retry_interval`, which stays as it is.
    ///
    /// A shorter ttl applies to the guards before the change is sent to the database, a longer one after the database
    /// has answered. After an error the shorter of the two applies, and the change is repeated with the heartbeats
    /// until it succeeds.
    ///
    /// ```no_run
    /// # async fn example(client: leadergroup_lock::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// // Before something slow, in which this process may not get to its heartbeats.
    /// client.set_ttl(Duration::from_secs(60)).await?;
    /// // After it: let others take over sooner again should this process fail.
    /// client.set_ttl(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        self.process.set_ttl(ttl).await
    }

    /// Takes the key if it has neither a holder nor waiters. If this holder already has the key, it is held once more.
    /// Never waits for other clients that want the key: while another one is about to take it, the result is `None`. It
    /// waits only for fenced transactions of the last holder, according to the [`FencePolicy`](crate::FencePolicy), and
    /// to [observe](ClientConfig::confirm_death) a holder that is probably dead, or a quarantine.
    pub async fn try_lock(&self, key: &Key) -> Result<Option<Guard>, ClientError> {
        Ok(self.try_lock_or_why(key).await?.ok())
    }

    /// The same, with the reason if the key could not be acquired.
    pub async fn try_lock_or_why(&self, key: &Key) -> Result<Result<Guard, Reason>, ClientError> {
        within(trying(key, &self.holder), self.waiter(key, Wait::No, Some(Duration::ZERO)).run()).await
    }

    /// Waits until it is this holder's turn, first come, first served, but not for longer than `wait`. A key that this
    /// holder has already is held once more. While the database cannot be reached, it is tried again; the error at the end
    /// says so. May be dropped at any time: the place in the queue is given up then.
    pub async fn lock(&self, key: &Key, wait: Duration) -> Result<Guard, ClientError> {
        let waiter = self.waiter(key, Wait::InQueue, Some(wait));
        within(waiting(key, &self.holder), async {
            let deadline = |reason| ClientError::Deadline { key: key.to_string(), waited: wait, reason };
            waiter.run().await?.map_err(deadline)
        })
        .await
    }

    /// Waits for as long as it takes.
    pub(crate) async fn lock_whenever(&self, key: &Key) -> Result<Guard, ClientError> {
        let waiter = self.waiter(key, Wait::InQueue, None);
        within(waiting(key, &self.holder), async {
            let deadline =
                |reason| ClientError::Deadline { key: key.to_string(), waited: Duration::MAX, reason };
            waiter.run().await?.map_err(deadline)
        })
        .await
    }

    fn waiter<'a>(&'a self, key: &'a Key, wait: Wait, patience: Option<Duration>) -> Waiter<'a> {
        Waiter {
            client: self,
            key,
            wait,
            deadline: patience.and_then(|patience| monotonic().checked_add(patience)),
            confirm_death: self.config.confirm_death,
            counted: Attempt::begin(&self.process.store.counters),
            reason: Reason::NoAnswer,
        }
    }

    /// A guard for what was granted in this era, if it is still worth something.
    pub(crate) fn hold(
        &self,
        unfinished: &mut Unfinished,
        era: Option<EraId>,
        request: &AcquireRequest,
        token: Token,
    ) -> Option<Guard> {
        let (session, key) = (unfinished.session, &request.key);
        if !self.process.covers(session) {
            return None;
        }
        tracing::debug!(%key, %token, holder = %self.holder.name, "the lock is held");
        let term = Term::new(unfinished, self.holder.name.clone(), token, self.config.max_hold);
        // From now on it is looked at when the era changes. If that was just before, the grant may be lost; or it came from
        // another server than the heartbeat's.
        self.process.terms.enter(request.grant, &term);
        if Some(self.process.lease.borrow().era) != era {
            self.process.store.pool.forget();
            return None;
        }
        let mut held = self.held();
        held.retain(|_, term| term.strong_count() > 0);
        held.insert(key.clone(), Arc::downgrade(&term));
        Some(Guard::new(term))
    }

    /// The key, if this holder has it already.
    pub(crate) fn again(&self, key: &Key) -> Option<Guard> {
        let term = self.held().get(key).and_then(Weak::upgrade)?;
        Guard::again(term)
    }

    /// What this client is called in tables and in the history, and to whom a key is [transferred](Guard::transfer_to).
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Key, Weak<Term>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn request(&self, key: &Key) -> AcquireRequest {
        let request = AcquireRequest::new(key.clone(), self.holder.clone(), self.config.reason.clone());
        AcquireRequest { lock_delay: self.config.lock_delay, ..request }
    }

    /// Ends the session: everything that is held or waited for by any holder of this process is free at once. Clones get no
    /// lock any more, but [`LockError::SessionDead`].
    pub async fn shutdown(self) -> Result<(), LockError> {
        self.background.tasks.iter().for_each(JoinHandle::abort);
        let lease = *self.process.lease.borrow();
        self.process.close();
        if lease.covers(lease.session, monotonic()) {
            self.process.store.close(lease.session).await
        } else {
            // It may be too late to end in order.
            self.process.store.abandon(lease.session).await
        }
    }
}

/// Starts the heartbeat, in a task or in a thread of its own.
fn keep(process: &Arc<Process>, in_a_thread: bool) -> Result<JoinHandle<()>, LockError> {
    let early = Arc::new(Notify::new());
    if !in_a_thread {
        let heartbeat = Heartbeat::new(Arc::clone(process), process.store.clone(), early, None);
        return Ok(tokio::spawn(heartbeat.run()));
    }
    let problem = |error: std::io::Error| LockError::Invalid {
        what: "thread for the heartbeat",
        problem: format!("cannot be started: {error}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(problem)?;
    let heartbeat = Heartbeat::new(Arc::clone(process), process.store.with_own_connections(), early, None);
    std::thread::Builder::new()
        .name("leadergroup-heartbeat".to_owned())
        .spawn(move || runtime.block_on(heartbeat.run()))
        .map_err(problem)?;
    // The thread ends when the process is closed.
    Ok(tokio::spawn(std::future::pending()))
}
