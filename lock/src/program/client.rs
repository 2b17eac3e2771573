//! Locks for any program: acquire a key, or wait for it, and notice when it is lost.
//!
//! A [`Client`] is one process with one session; a background task keeps it alive, watches other sessions and marks
//! expired ones dead. One heartbeat keeps all keys that it holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::db::prune::housekeeping;
use crate::db::stats::Attempt;
use crate::program::applicant::Applicant;
use crate::program::trace::{trying, waiting, within};
use crate::program::wait::Waiter;
use crate::session::heartbeat::Heartbeat;
use crate::session::listen::listen;
use crate::session::process::{Process, reconcile};
use crate::{
    ClientConfig, ClientError, Guard, Holder, Key, LockError, Reason, Store, Tried, protocol::Wait,
    session::settings::SessionConfig,
};

/// A program that holds locks. Cheap to clone; a clone is the same holder. Tasks that share a client, or have clones of
/// it, exclude each other, unless it is [reentrant](ClientConfig::reentrant). Dropping the last clone stops the
/// heartbeat. Its keys become free after the ttl, including those whose guards were dropped just before.
/// [`shutdown`](Self::shutdown) frees everything at once, also keys of guards that other tasks still have: stop their
/// work before.
///
/// ```no_run
/// # async fn example(store: leadergroup_lock::Store) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use leadergroup_lock::{Client, ClientConfig, Key, Released};
///
/// let config = ClientConfig { name: "report-writer".into(), ..ClientConfig::default() };
/// let client = Client::connect(store, config).await?;
/// let guard = client.lock(&Key::new("nightly-report")?, Duration::from_secs(60)).await?;
/// tokio::select! {
///     () = guard.lost() => eprintln!("stop: another holder may be working"),
///     () = work(guard.token().get()) => {}
/// }
/// if guard.release().await? == Released::WasLost {
///     eprintln!("others may have worked at the same time");
/// }
/// client.shutdown().await?;
/// # Ok(())
/// # }
/// # async fn work(token: i64) {}
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) applicant: Applicant,
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
        f.debug_struct("Client").field("holder", &self.applicant.holder).finish_non_exhaustive()
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
        Ok(Self { applicant: Applicant::new(process, config, holder), background })
    }

    /// Creates another holder in the same process, with the same session and another name in tables and in the history.
    /// It has to wait for keys that this one holds, even if the two are [reentrant](ClientConfig::reentrant).
    #[must_use]
    pub fn another_holder(&self, name: &str) -> Self {
        Self { applicant: self.applicant.another(name), background: Arc::clone(&self.background) }
    }

    /// Acquires the key if it has no holder and no waiters; `None` otherwise, also if another task of this client has
    /// it (see [`reentrant`](ClientConfig::reentrant)). Never waits for others that want the key: while another program
    /// is about to take it, the answer is `None`. Waits for fenced transactions of the last holder, as the
    /// [`FencePolicy`](crate::FencePolicy) says.
    ///
    /// Usually returns at once. With [`confirm_death`](ClientConfig::confirm_death) (the default) it takes longer if
    /// something has to be observed before anyone can get the key: the ttl of a holder that has been silent for twice
    /// as long, the rest of a [`lock_delay`](ClientConfig::lock_delay) of the last holder, or the longest ttl of all
    /// programs after a failover; each time four [`retry_interval`](ClientConfig::retry_interval)s more, and the time
    /// that the database takes for its answers.
    pub async fn try_lock(&self, key: &Key) -> Result<Option<Guard>, ClientError> {
        Ok(self.try_lock_or_why(key).await?.held())
    }

    /// Like [`try_lock`](Self::try_lock), with the reason if the key was not acquired.
    pub async fn try_lock_or_why(&self, key: &Key) -> Result<Tried, ClientError> {
        let trying = trying(key, &self.applicant.holder);
        let tried = within(trying, self.waiter(key, Wait::No, Some(Duration::ZERO)).run()).await?;
        Ok(match tried {
            Ok(guard) => Tried::Held(guard),
            Err(reason) => Tried::NotHeld(reason),
        })
    }

    /// Waits in the queue until this holder gets the key, first come, first served. If another task of this client has
    /// the key, it waits for that one, too (see [`reentrant`](ClientConfig::reentrant)). While the database cannot be
    /// reached, the request is repeated; if that lasts until the end, the error says so. The future may be dropped at
    /// any time: it gives up its place in the queue.
    ///
    /// The wait ends after `wait`, which may be [`Duration::MAX`]. It takes longer if something is being observed at
    /// that time before anyone can get the key, in the cases and for as long as [`try_lock`](Self::try_lock) says: with
    /// a `lock_delay` of ten minutes, up to ten minutes. Turn off [`confirm_death`](ClientConfig::confirm_death), or
    /// put a `timeout` around the call, if it must end in time.
    pub async fn lock(&self, key: &Key, wait: Duration) -> Result<Guard, ClientError> {
        self.wait_in_queue(key, Some(wait)).await
    }

    /// Waits without a time limit.
    pub(crate) async fn lock_whenever(&self, key: &Key) -> Result<Guard, ClientError> {
        self.wait_in_queue(key, None).await
    }

    async fn wait_in_queue(&self, key: &Key, patience: Option<Duration>) -> Result<Guard, ClientError> {
        let process = &self.applicant.process;
        let begun = process.now();
        let waiter = self.waiter(key, Wait::InQueue, patience);
        within(waiting(key, &self.applicant.holder), async {
            waiter.run().await?.map_err(|reason| {
                // In whole milliseconds: the error is for people.
                let millis = process.now().saturating_sub(begun).as_millis();
                let time = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
                ClientError::Deadline { key: key.to_string(), waited: time, reason }
            })
        })
        .await
    }

    fn waiter<'a>(&'a self, key: &'a Key, wait: Wait, patience: Option<Duration>) -> Waiter<'a> {
        let process = &self.applicant.process;
        Waiter {
            applicant: &self.applicant,
            key,
            wait,
            deadline: patience.and_then(|patience| process.now().checked_add(patience)),
            confirm_death: self.applicant.config.confirm_death,
            counted: Attempt::begin(&process.store.database.counters),
            reason: Reason::NoAnswer,
        }
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.applicant.process.store
    }

    /// The holder, as in tables and in the history, and as the target of a [transfer](Guard::transfer_to).
    pub fn holder(&self) -> &Holder {
        &self.applicant.holder
    }

    /// Ends the session: all keys and places in queues of all holders of this process are free at once. Clones get
    /// [`LockError::SessionDead`] from then on.
    pub async fn shutdown(self) -> Result<(), LockError> {
        self.background.tasks.iter().for_each(JoinHandle::abort);
        let process = &self.applicant.process;
        let lease = *process.lease.borrow();
        let in_time = lease.covers(lease.session, process.now());
        let idle = process.terms.is_empty() && process.turns.nobody_waits();
        process.close();
        if in_time && idle {
            process.store.close_quietly(lease.session).await
        } else if in_time {
            process.store.close(lease.session).await
        } else {
            // It may be too late to end in order.
            process.store.abandon(lease.session).await
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
