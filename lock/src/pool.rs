//! Connections: how many, how long, and how a statement runs on one.
//!
//! A pool of its own instead of the driver's, for three reasons. A connection whose statement did not end well (timed
//! out, cancelled by dropping its future, answered with an error) is never used again: it may still be in the middle of
//! something. No statement costs a second round trip for a test of the connection. And heartbeats have a connection of
//! their own that no other work can occupy.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection, Executor as _};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::pooler::{self, Opened, Settings};
use super::target::{Route, Target};
use super::{DatabaseConfig, LockError, PoolState};

/// How much longer than the server the client waits: the server's own word on a timeout says more than ours.
const GRACE: Duration = Duration::from_millis(100);

/// How long a polite goodbye to the server may take before the connection is just dropped.
const GOODBYE: Duration = Duration::from_secs(1);

/// For how long more connections than `max_idle` are kept without work. Many tasks come at once, and again: a connection that
/// was closed between two of their statements would have to be made anew, for more than the statements cost.
const LINGER: Duration = Duration::from_secs(5);

/// Which connection a statement runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Any of the shared ones.
    Work,
    /// The one reserved for heartbeats. Their commits do not wait for synchronous standbys: a heartbeat that a failover
    /// loses costs nothing, but one that hangs in COMMIT, where no timeout of the server reaches it, costs the session.
    Heartbeat,
}

/// One prepared statement and what it is called in errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Statement {
    /// For people.
    pub(super) name: &'static str,
    /// The text.
    pub(super) sql: &'static str,
}

/// The connections to one database. Cheap to clone.
#[derive(Clone)]
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    target: Target,
    limit: Duration,
    max_lifetime: Duration,
    max_idle_time: Duration,
    work_connections: usize,
    work: Lanes,
    heartbeat: Lanes,
    /// The generation of the route that was found to lead to a pooler, plus one.
    pooler: AtomicU64,
    /// Statements that were repeated although the first try may still be under way.
    repeats: AtomicU64,
}

struct Lanes {
    settings: Settings,
    /// Begins a transaction with these settings.
    begin: Arc<str>,
    size: usize,
    /// Most that are kept without work for longer than [`LINGER`].
    max_idle: usize,
    permits: Arc<Semaphore>,
    /// Statements that wait for a permit.
    waiting: AtomicUsize,
    /// The last one given back is the first one taken, so that superfluous ones grow old.
    idle: Mutex<Vec<Live>>,
}

struct Live {
    connection: PgConnection,
    /// See [`Opened::pooled`].
    pooled: bool,
    /// Of the route that it was made by.
    generation: u64,
    born: Instant,
    idle_since: Instant,
}

/// A connection in use. Dropping it without [`Pool::give_back`] closes it: that is what makes every
/// statement safe to cancel.
struct Lease {
    live: Live,
    reused: bool,
    _permit: OwnedSemaphorePermit,
}

impl Lanes {
    fn new(connections: usize, max_idle: usize, settings: Settings) -> Self {
        Self {
            begin: settings.begin().into(),
            settings,
            size: connections,
            max_idle,
            permits: Arc::new(Semaphore::new(connections)),
            waiting: AtomicUsize::new(0),
            idle: Mutex::new(Vec::new()),
        }
    }

    /// A permit, counted among those who wait until it is there, or not wanted any more.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(permit);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        Arc::clone(&self.permits).acquire_owned().await
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Live>> {
        // Nothing panics while the lock is held, and the list is whole at every moment.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("target", &self.0.target).finish_non_exhaustive()
    }
}

impl Pool {
    /// Checks the settings; connects later.
    pub(super) fn new(config: &DatabaseConfig) -> Result<Self, LockError> {
        Ok(Self::with(config, Target::of(config)?))
    }

    /// Makes no connection, and says why each time.
    pub(super) fn refusing(error: LockError) -> Self {
        Self::with(&DatabaseConfig::default(), Target::nowhere(error))
    }

    fn with(config: &DatabaseConfig, target: Target) -> Self {
        // One connection is the heartbeats', one the hints'; the settings' check leaves at least one.
        let work = config.max_open_connections.saturating_sub(2).max(1) as usize;
        let settings = Settings::new(config.statement_timeout);
        let heartbeat = settings.clone().with("synchronous_commit", "local".to_owned());
        Self(Arc::new(Inner {
            target,
            limit: config.statement_timeout,
            max_lifetime: config.connection_max_lifetime,
            max_idle_time: config.connection_max_idle_time,
            work_connections: work,
            work: Lanes::new(work, config.max_idle_connections as usize, settings),
            heartbeat: Lanes::new(1, 1, heartbeat),
            pooler: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
        }))
    }

    /// Runs one statement in one round trip (two when the connection sees it for the first time, and four through a pooler)
    /// and returns its rows.
    ///
    /// Every statement of this room may be repeated without harm, so one that broke together with a connection that had
    /// been idle, such as after a restart of the server, is repeated once on a new connection.
    pub(super) async fn rows(
        &self,
        lane: Lane,
        statement: Statement,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>, LockError> {
        let mut lease = self.lease(lane, false).await?;
        if lease.reused {
            match self.run(lane, lease, statement, arguments.clone()).await {
                Err(Failure { stale: true, error }) => {
                    self.0.repeats.fetch_add(1, Ordering::Relaxed);
                    // Whatever broke this connection broke its idle neighbours, too.
                    self.lanes(lane).idle().clear();
                    // Without another connection it stays open whether the statement took effect.
                    lease = self.lease(lane, true).await.map_err(|_| error)?;
                }
                other => return other.map_err(|failure| failure.error),
            }
        }
        self.run(lane, lease, statement, arguments).await.map_err(|failure| failure.error)
    }

    /// How many statements were repeated so far. Whoever is told that somebody else is at it, and sees another number than
    /// before, may have met a first try of its own.
    pub(super) fn repeats(&self) -> u64 {
        self.0.repeats.load(Ordering::Relaxed)
    }

    /// What the next connection is made with.
    pub(super) async fn route(&self) -> Result<Route, LockError> {
        self.0.target.route().await
    }

    /// Which place new connections lead to; see [`Route::generation`].
    pub(super) fn generation(&self) -> u64 {
        self.0.target.generation()
    }

    /// What statements on this lane run with.
    pub(super) fn settings(&self, lane: Lane) -> &Settings {
        &self.lanes(lane).settings
    }

    /// Whether connections of this generation lead to a pooler, as far as is known.
    pub(super) fn is_pooled(&self, generation: u64) -> bool {
        self.0.pooler.load(Ordering::Relaxed) == generation + 1
    }

    /// Remembers that connections of this generation lead to a pooler.
    pub(super) fn pooler_found(&self, generation: u64) {
        if self.0.pooler.swap(generation + 1, Ordering::Relaxed) != generation + 1 {
            tracing::info!(
                database = ?self.0.target,
                "the database is reached through a connection pooler: no notifications, waiters poll"
            );
        }
    }

    /// How long one step may take.
    pub(super) fn limit(&self) -> Duration {
        self.0.limit
    }

    /// How many connections there may be for all but heartbeats and hints.
    pub(super) fn work_connections(&self) -> usize {
        self.0.work_connections
    }

    /// The connections at this moment.
    pub(super) fn state(&self) -> PoolState {
        let mut state = PoolState::default();
        for lanes in [&self.0.work, &self.0.heartbeat] {
            state.most += lanes.size as u64;
            state.in_use += lanes.size.saturating_sub(lanes.permits.available_permits()) as u64;
            state.idle += lanes.idle().len() as u64;
            state.waiting += lanes.waiting.load(Ordering::Relaxed) as u64;
        }
        state
    }

    fn lanes(&self, lane: Lane) -> &Lanes {
        match lane {
            Lane::Work => &self.0.work,
            Lane::Heartbeat => &self.0.heartbeat,
        }
    }

    /// An idle connection, or a new one.
    async fn lease(&self, lane: Lane, fresh: bool) -> Result<Lease, LockError> {
        let lanes = self.lanes(lane);
        // The semaphore is never closed, so this fails only when the time is up.
        let Ok(Ok(permit)) = timeout(self.0.limit, lanes.permit()).await else {
            let detail = format!("all of this program's own are busy for {} ms", self.0.limit.as_millis());
            return Err(LockError::NoConnection { detail });
        };
        self.0.target.look().await;
        self.sweep();
        let idle = lanes.idle().pop();
        match idle {
            Some(live) if !fresh => return Ok(Lease { live, reused: true, _permit: permit }),
            // There are never more than there are permits.
            Some(live) => retire(live, None),
            None => {}
        }
        let live = self.connect(lane).await?;
        Ok(Lease { live, reused: false, _permit: permit })
    }

    async fn connect(&self, lane: Lane) -> Result<Live, LockError> {
        let route = self.route().await?;
        let Opened { connection, pooled } = self.open(&route, self.settings(lane)).await?;
        let now = Instant::now();
        Ok(Live { connection, pooled, generation: route.generation, born: now, idle_since: now })
    }

    /// A connection outside of the pool.
    pub(super) async fn open(&self, route: &Route, settings: &Settings) -> Result<Opened, LockError> {
        let known = self.is_pooled(route.generation);
        match timeout(self.0.limit, pooler::open(&route.options, settings, known)).await {
            Ok(Ok(opened)) => {
                if opened.pooled {
                    self.pooler_found(route.generation);
                }
                Ok(opened)
            }
            Ok(Err(error)) => Err(route.error(&error)),
            Err(_) => Err(LockError::Unreachable {
                endpoint: route.endpoint(),
                detail: format!("no answer within {} ms", self.0.limit.as_millis()),
            }),
        }
    }

    async fn run(
        &self,
        lane: Lane,
        mut lease: Lease,
        statement: Statement,
        arguments: PgArguments,
    ) -> Result<Vec<PgRow>, Failure> {
        let limit = self.0.limit + GRACE;
        let Live { connection, pooled, .. } = &mut lease.live;
        let begin = pooled.then(|| Arc::clone(&self.lanes(lane).begin));
        let query = async {
            let Some(begin) = begin else {
                return sqlx::query_with(statement.sql, arguments).fetch_all(connection).await;
            };
            // What was prepared, and the right to a connection of the server, last as long as the transaction.
            connection.execute(AssertSqlSafe(begin)).await?;
            let query = sqlx::query_with(statement.sql, arguments).persistent(false);
            let rows = query.fetch_all(&mut *connection).await?;
            connection.execute("commit").await?;
            Ok(rows)
        };
        match timeout(limit, query).await {
            Ok(Ok(rows)) => {
                self.give_back(lane, lease);
                Ok(rows)
            }
            Ok(Err(error)) => {
                let error = LockError::from_statement(&error, statement.name, self.0.limit);
                let stale = matches!(error, LockError::Interrupted { .. });
                Err(Failure { error, stale })
            }
            Err(_) => {
                let error = LockError::Timeout { statement: statement.name, after: limit };
                Err(Failure { error, stale: false })
            }
        }
    }

    /// Keeps a connection that is known to be in order.
    fn give_back(&self, lane: Lane, lease: Lease) {
        let Lease { mut live, _permit: permit, .. } = lease;
        let now = Instant::now();
        live.idle_since = now;
        let lanes = self.lanes(lane);
        if now - live.born < self.0.max_lifetime && lanes.max_idle > 0 {
            lanes.idle().push(live);
            drop(permit);
            return;
        }
        retire(live, Some(permit));
    }

    /// Closes what was idle for too long, is superfluous, too old, or leads elsewhere than new connections do. Every statement comes by
    /// here, heartbeats included, so that no task has to.
    fn sweep(&self) {
        let (now, generation) = (Instant::now(), self.generation());
        for lanes in [&self.0.work, &self.0.heartbeat] {
            let mut idle = lanes.idle();
            let mut position = 0;
            while position < idle.len() {
                let live = &idle[position];
                let unused = now - live.idle_since;
                // The first ones have been without work for the longest time.
                if unused >= self.0.max_idle_time
                    || unused >= LINGER && idle.len() > lanes.max_idle
                    || now - live.born >= self.0.max_lifetime
                    || live.generation != generation
                {
                    retire(idle.remove(position), None);
                } else {
                    position += 1;
                }
            }
        }
    }
}

/// Says goodbye to the server in the background; the permit is kept until then.
fn retire(live: Live, permit: Option<OwnedSemaphorePermit>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            // Whether the server heard it does not matter.
            let _ = timeout(GOODBYE, live.connection.close()).await;
            drop(permit);
        });
    }
}

/// How a statement failed.
struct Failure {
    error: LockError,
    /// The connection was broken, probably already before the statement was sent.
    stale: bool,
}
