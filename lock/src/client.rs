//! Locks for any program: acquire a key, or wait for it, and notice when it is lost.
//!
//! A [`Client`] is one process with one session; a background task keeps it alive, watches other sessions and marks
//! expired ones dead. One heartbeat keeps all keys that it holds.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::guard::{Guard, HeldTerm};
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

/// Settings of a client: how it keeps its session, and how it requests keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// The holder's name in tables and in the history.
    pub name: String,
    /// After this long without a heartbeat, the client's keys go to others. Its guards are lost before that.
    pub ttl: Duration,
    /// Time between two heartbeats; at most a third of `ttl`. Waiters poll at the same interval, besides being woken.
    pub retry_interval: Duration,
    /// The reason for its requests, kept in the history.
    pub reason: String,
    /// For how long no one gets a key after this client's session was marked dead while it held the key: effects of
    /// work that was under way may come late. The waiters measure it, each from the time when it first learns of the
    /// death mark. A release and a [`shutdown`](Client::shutdown) hand over at once.
    pub lock_delay: Duration,
    /// The longest time that a key may be held. After that, its guard is [lost](Guard::lost). The key is free for
    /// others when the guard is dropped, or else with the first heartbeat after another fifth of the ttl, whatever the
    /// holder does.
    pub max_hold: Option<Duration>,
    /// Whether the heartbeat runs in its own thread, with its own connections. Then code that blocks the caller's
    /// runtime does not lose the lock.
    pub heartbeat_thread: bool,
    /// Whether a try, and a wait whose time is over, may take longer if something has to be observed before anyone can
    /// get the key. If the holder has been silent for twice its ttl, this takes its ttl: the client watches the holder,
    /// marks it dead, and tries once more. In the [quarantine](crate::Quarantine) after a failover, it takes the
    /// longest ttl. Without this, programs that only try once, and end, never get such a key.
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
    /// The time to wait was over.
    #[error("the lock {key:?} could not be acquired within {waited:?}: {reason}")]
    Deadline {
        /// The key.
        key: String,
        /// How long the client waited for it.
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
    /// The database failed, or refused the operation.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// A program that holds locks. Cheap to clone; a clone is the same holder, and may take a key that the holder already
/// has. Dropping the last one ends the background tasks; [`shutdown`](Self::shutdown) also frees everything at once.
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
///     () = guard.lost() => eprintln!("stop: another holder may be working"),
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
    /// The terms that this holder has. The guards keep them alive.
    held: Arc<Mutex<HashMap<Key, Weak<HeldTerm>>>>,
    background: Arc<Background>,
}

/// Ends the background tasks with the last client.
struct Background {
    process: Arc<Process>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Background {
    fn drop(&mut self) {
        // This also ends a heartbeat in a thread. Remaining guards can still release their keys.
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
    /// Registers a session and starts its heartbeat.
    pub async fn connect(store: Store, config: ClientConfig) -> Result<Self, LockError> {
        let ClientConfig { name, ttl, retry_interval, .. } = config.clone();
        let session = SessionConfig { name, ttl, retry_interval, ..SessionConfig::default() };
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

    /// Creates another holder in the same process, with the same session: it has to wait for keys that this one holds.
    #[must_use]
    pub fn another_holder(&self, name: &str) -> Self {
        let uid = uuid::Uuid::new_v4().to_string();
        let holder = Holder { uid, name: name.to_owned(), ..self.holder.clone() };
        Self { holder, held: Arc::default(), ..self.clone() }
    }

    /// Changes the ttl of the session, and so of all its keys; a program that needs two ttls at a time needs two
    /// clients. The ttl must be at least three times the `retry_interval`, which does not change.
    ///
    /// A shorter ttl applies to the guards before the database is asked, a longer one after it has answered. After an
    /// error, the shorter of the two applies to the guards, and the heartbeats repeat the change until it is done.
    ///
    /// ```no_run
    /// # async fn example(client: leadergroup_lock::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// // Before slow work that may delay the heartbeats of this process.
    /// client.set_ttl(Duration::from_secs(60)).await?;
    /// // After it, so that others take over sooner again if this process fails.
    /// client.set_ttl(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        self.process.set_ttl(ttl).await
    }

    /// Acquires the key if it has no holder and no waiters. If this holder already has it, it is held once more. Never
    /// waits for others that want the key: while another program is about to take it, the answer is `None`. Waits only
    /// for fenced transactions of the last holder, as the [`FencePolicy`](crate::FencePolicy) says, and
    /// [observes](ClientConfig::confirm_death) a holder that is probably dead, or a quarantine.
    pub async fn try_lock(&self, key: &Key) -> Result<Option<Guard>, ClientError> {
        Ok(self.try_lock_or_why(key).await?.ok())
    }

    /// Like [`try_lock`](Self::try_lock), with the reason if the key was not acquired.
    pub async fn try_lock_or_why(&self, key: &Key) -> Result<Result<Guard, Reason>, ClientError> {
        within(trying(key, &self.holder), self.waiter(key, Wait::No, Some(Duration::ZERO)).run()).await
    }

    /// Waits in the queue until this holder gets the key, first come, first served, but not for longer than `wait`. If
    /// this holder already has the key, it is held once more. While the database cannot be reached, the request is
    /// repeated; if that lasts until the end, the error says so. The future may be dropped at any time: it gives up its
    /// place in the queue.
    pub async fn lock(&self, key: &Key, wait: Duration) -> Result<Guard, ClientError> {
        let waiter = self.waiter(key, Wait::InQueue, Some(wait));
        within(waiting(key, &self.holder), async {
            let deadline = |reason| ClientError::Deadline { key: key.to_string(), waited: wait, reason };
            waiter.run().await?.map_err(deadline)
        })
        .await
    }

    /// Waits without a time limit.
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
            deadline: patience.and_then(|patience| self.process.now().checked_add(patience)),
            confirm_death: self.config.confirm_death,
            counted: Attempt::begin(&self.process.store.database.counters),
            reason: Reason::NoAnswer,
        }
    }

    /// Returns a guard for a request that was granted in this era, if the grant still counts.
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
        let term = HeldTerm::new(unfinished, self.holder.name.clone(), token, self.config.max_hold);
        // From now on, the term is checked when the era changes. If the era changed just before, the grant may be lost;
        // or the grant came from another server than the heartbeat's answer.
        self.process.terms.enter(request.grant, &term);
        if Some(self.process.lease.borrow().era) != era {
            self.process.store.database.pool.forget();
            return None;
        }
        let mut held = self.held.lock();
        held.retain(|_, term| term.strong_count() > 0);
        held.insert(key.clone(), Arc::downgrade(&term));
        Some(Guard::new(term))
    }

    /// Another guard for the key, if this holder already has it.
    pub(crate) fn again(&self, key: &Key) -> Option<Guard> {
        let term = self.held.lock().get(key).and_then(Weak::upgrade)?;
        Guard::again(term)
    }

    /// The holder, as in tables and in the history, and as the target of a [transfer](Guard::transfer_to).
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    pub(crate) fn request(&self, key: &Key) -> AcquireRequest {
        let request = AcquireRequest::new(key.clone(), self.holder.clone(), self.config.reason.clone());
        AcquireRequest { lock_delay: self.config.lock_delay, ..request }
    }

    /// Ends the session: all keys and places in queues of all holders of this process are free at once. Clones get
    /// [`LockError::SessionDead`] from then on.
    pub async fn shutdown(self) -> Result<(), LockError> {
        self.background.tasks.iter().for_each(JoinHandle::abort);
        let lease = *self.process.lease.borrow();
        self.process.close();
        if lease.covers(lease.session, self.process.now()) {
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
