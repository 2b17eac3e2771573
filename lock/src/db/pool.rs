//! Connections: how many there are, how long they live, and how a statement runs on one.
//!
//! The crate has its own pool instead of the driver's, for three reasons. A connection whose statement did not end well
//! (timed out, cancelled by dropping its future, or failed) is never used again, because it may still be in the middle
//! of something. No statement costs a second round trip to test the connection. And heartbeats have their own
//! connection, which no other work can occupy.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::db::link::Link;
use crate::db::pooler::{self, Opened, Settings};
use crate::db::route::{Place, Route, endpoint, silent};
use crate::db::statement::{Bind, Row, Statement};
use crate::db::target::Target;
#[cfg(feature = "memory")]
use crate::memory::MemoryClient;
use crate::{Clock, DatabaseConfig, LockError};

/// Connections to the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolState {
    /// The largest number of connections at a time.
    pub most: u64,
    /// In use, or being closed.
    pub in_use: u64,
    /// Open without work.
    pub idle: u64,
    /// Statements that wait for a connection.
    pub waiting: u64,
}

/// How much longer than the server the client waits, because the server's message about a timeout says more than the
/// client's.
const GRACE: Duration = Duration::from_millis(100);

/// How long connections beyond `max_idle` are kept without work. Many tasks that run at the same time soon run again:
/// closing a connection between two of their statements and opening it again would cost more than the statements.
const LINGER: Duration = Duration::from_secs(5);

/// Which connection a statement runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Any of the shared ones.
    Work,
    /// The one reserved for heartbeats. Their commits do not wait for synchronous standbys, unless the settings ask for
    /// it: losing a heartbeat in a failover costs nothing, but a heartbeat that hangs in COMMIT, where no timeout of
    /// the server applies, costs the session.
    Heartbeat,
}

/// The connections to one database. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    target: Target,
    clock: Clock,
    /// Makes the connections to a database in memory, if the pool is for one.
    #[cfg(feature = "memory")]
    memory: Option<MemoryClient>,
    limit: Duration,
    max_lifetime: Duration,
    max_idle_time: Duration,
    work_connections: usize,
    work: Lanes,
    heartbeat: Lanes,
    /// Statements that were repeated although the first try may still be under way.
    repeats: AtomicU64,
}

struct Lanes {
    settings: Settings,
    /// The command that begins a transaction with these settings.
    begin: Arc<str>,
    size: usize,
    /// How many are kept without work for longer than [`LINGER`].
    max_idle: usize,
    permits: Arc<Semaphore>,
    /// Statements that wait for a permit.
    waiting: AtomicUsize,
    /// The one returned last is taken first, so that superfluous ones grow old.
    idle: Mutex<Vec<Live>>,
}

struct Live {
    link: Link,
    /// See [`Opened::pooled`].
    pooled: bool,
    /// The place that it was made for.
    place: Arc<Place>,
    born: Duration,
    idle_since: Duration,
}

/// A connection in use. Dropping it without [`Pool::give_back`] closes it, which makes every statement safe to cancel.
struct Checkout {
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

    /// Returns a permit. Counts as waiting until it has one, or is dropped.
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
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("target", &self.0.target).finish_non_exhaustive()
    }
}

impl Pool {
    /// Checks the settings; connects later.
    pub(crate) fn new(config: &DatabaseConfig) -> Result<Self, LockError> {
        Ok(Self::with(config, Target::of(config)?))
    }

    /// A pool that makes no connection, and returns this error each time.
    pub(crate) fn refusing(error: LockError) -> Self {
        Self::with(&DatabaseConfig::default(), Target::nowhere(error))
    }

    /// A pool for a database in memory.
    #[cfg(feature = "memory")]
    pub(crate) fn in_memory(client: &MemoryClient) -> Result<Self, LockError> {
        let config = client.config();
        let Self(mut inner) = Self::with(config, Target::of(config)?);
        if let Some(inner) = Arc::get_mut(&mut inner) {
            (inner.clock, inner.memory) = (client.clock(), Some(client.clone()));
        }
        Ok(Self(inner))
    }

    /// What makes the connections, if they lead to a database in memory.
    #[cfg(feature = "memory")]
    pub(crate) fn memory(&self) -> Option<&MemoryClient> {
        self.0.memory.as_ref()
    }

    fn with(config: &DatabaseConfig, target: Target) -> Self {
        // One connection is for heartbeats, one for hints; the check of the settings guarantees at least one more.
        let work = config.max_open_connections.saturating_sub(2).max(1) as usize;
        let settings = Settings::new(config.statement_timeout);
        let heartbeat = if config.synchronous_heartbeats {
            settings.clone()
        } else {
            settings.clone().with("synchronous_commit", "local".to_owned())
        };
        Self(Arc::new(Inner {
            target,
            clock: Clock::boottime(),
            #[cfg(feature = "memory")]
            memory: None,
            limit: config.statement_timeout,
            max_lifetime: config.connection_max_lifetime,
            max_idle_time: config.connection_max_idle_time,
            work_connections: work,
            work: Lanes::new(work, config.max_idle_connections as usize, settings),
            heartbeat: Lanes::new(1, 1, heartbeat),
            repeats: AtomicU64::new(0),
        }))
    }

    /// Runs one statement in one round trip (two when the connection runs it for the first time, and four through a
    /// pooler) and returns its rows.
    ///
    /// Every statement of this crate may be repeated without harm. So a statement that failed together with a
    /// connection that had been idle, for instance after a restart of the server, is repeated once on a new connection.
    /// The same is done when the server has stopped accepting writes and the URL names other servers.
    pub(crate) async fn rows(
        &self,
        lane: Lane,
        statement: Statement,
        bind: Bind,
    ) -> Result<Vec<Row>, LockError> {
        let mut lease = self.lease(lane, false).await?;
        if lease.reused {
            match self.run(lane, lease, statement, bind.clone()).await {
                Err(Failure { stale: true, error }) => {
                    self.0.repeats.fetch_add(1, Ordering::Relaxed);
                    // The other idle connections are broken as well.
                    self.lanes(lane).idle.lock().clear();
                    // If there is no new connection, it is unknown whether the statement took effect: report the first
                    // error.
                    lease = self.lease(lane, true).await.map_err(|_| error)?;
                }
                other => return other.map_err(|failure| failure.error),
            }
        }
        self.run(lane, lease, statement, bind).await.map_err(|failure| failure.error)
    }

    /// Another pool of the same size for the same database.
    pub(crate) fn another(&self) -> Self {
        #[cfg(feature = "memory")]
        if let Some(client) = &self.0.memory {
            return Self::in_memory(client).unwrap_or_else(|_| self.clone());
        }
        match self.0.target.config() {
            Some(config) => Self::new(config).unwrap_or_else(|_| self.clone()),
            None => self.clone(),
        }
    }

    /// Closes the idle connections except the one for heartbeats, because they lead to another server than that one.
    pub(crate) fn forget(&self) {
        self.0.work.idle.lock().clear();
    }

    /// How many statements were repeated so far. If this number has changed, a caller that was refused because
    /// something is in use may have been refused because of its own first try.
    pub(crate) fn repeats(&self) -> u64 {
        self.0.repeats.load(Ordering::Relaxed)
    }

    /// The clock that everything on this database uses.
    pub(crate) fn clock(&self) -> Clock {
        self.0.clock
    }

    /// A new random UUID.
    #[cfg_attr(
        not(feature = "memory"),
        expect(clippy::unused_self, reason = "only a database in memory has a say")
    )]
    pub(crate) fn new_uuid(&self) -> uuid::Uuid {
        #[cfg(feature = "memory")]
        if let Some(client) = &self.0.memory {
            return client.new_uuid();
        }
        uuid::Uuid::new_v4()
    }

    /// The route of the next connection.
    pub(crate) async fn route(&self) -> Result<Route, LockError> {
        self.0.target.route().await
    }

    /// Whether new connections lead to this place as well.
    pub(crate) fn still_leads_to(&self, place: &Arc<Place>) -> bool {
        self.0.target.place().is_some_and(|present| Arc::ptr_eq(&present, place))
    }

    /// The settings of statements on this lane.
    pub(crate) fn settings(&self, lane: Lane) -> &Settings {
        &self.lanes(lane).settings
    }

    /// How long one step may take.
    pub(crate) fn limit(&self) -> Duration {
        self.0.limit
    }

    /// After how long a step is given up.
    pub(crate) fn patience(&self) -> Duration {
        self.0.limit + GRACE
    }

    /// How many connections there may be besides those for heartbeats and hints.
    pub(crate) fn work_connections(&self) -> usize {
        self.0.work_connections
    }

    /// The connections at this moment.
    pub(crate) fn state(&self) -> PoolState {
        let mut state = PoolState::default();
        for lanes in [&self.0.work, &self.0.heartbeat] {
            state.most += lanes.size as u64;
            state.in_use += lanes.size.saturating_sub(lanes.permits.available_permits()) as u64;
            state.idle += lanes.idle.lock().len() as u64;
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
    async fn lease(&self, lane: Lane, fresh: bool) -> Result<Checkout, LockError> {
        let lanes = self.lanes(lane);
        // The semaphore is never closed, so this fails only when the time is up.
        let Ok(Ok(permit)) = timeout(self.0.limit, lanes.permit()).await else {
            let detail = format!("all of this program's own were busy for {} ms", self.0.limit.as_millis());
            return Err(LockError::NoConnection { detail });
        };
        self.0.target.look().await;
        self.sweep();
        let idle = lanes.idle.lock().pop();
        match idle {
            Some(live) if !fresh => return Ok(Checkout { live, reused: true, _permit: permit }),
            // Closed, so that there are never more connections than permits.
            Some(live) => retire(live, None),
            None => {}
        }
        let live = self.connect(lane).await?;
        Ok(Checkout { live, reused: false, _permit: permit })
    }

    async fn connect(&self, lane: Lane) -> Result<Live, LockError> {
        let route = self.route().await?;
        let (link, pooled) = self.dial(&route, lane).await?;
        let now = self.0.clock.now();
        Ok(Live { link, pooled, place: route.place, born: now, idle_since: now })
    }

    /// A new connection, and whether it leads through a pooler.
    async fn dial(&self, route: &Route, lane: Lane) -> Result<(Link, bool), LockError> {
        #[cfg(feature = "memory")]
        if let Some(client) = &self.0.memory {
            return Ok((Link::Memory(client.connect(self.0.limit).await?), false));
        }
        let Opened { connection, pooled } = self.open(route, self.settings(lane)).await?;
        Ok((Link::Server(connection), pooled))
    }

    /// A connection outside of the pool.
    pub(crate) async fn open(&self, route: &Route, settings: &Settings) -> Result<Opened, LockError> {
        let mut attempts = route.attempts(self.0.limit);
        while let Some((host, limit)) = attempts.next() {
            let place = &route.place;
            match timeout(limit, pooler::open(host, settings, place.is_pooled(), place.wanted())).await {
                Ok(Ok(opened)) => {
                    attempts.worked();
                    if opened.pooled {
                        place.pooler_found();
                    }
                    return Ok(opened);
                }
                Ok(Err(failure)) => attempts.failed(host, failure.told(&endpoint(host))),
                Err(_) => attempts.failed(host, silent(host, limit)),
            }
        }
        Err(attempts.error())
    }

    async fn run(
        &self,
        lane: Lane,
        mut lease: Checkout,
        statement: Statement,
        bind: Bind,
    ) -> Result<Vec<Row>, Failure> {
        let limit = self.patience();
        let Live { link, pooled, place, .. } = &mut lease.live;
        let begin = pooled.then(|| Arc::clone(&self.lanes(lane).begin));
        match timeout(limit, link.rows(statement, bind, begin.as_deref())).await {
            Ok(Ok(rows)) => {
                self.give_back(lane, lease);
                Ok(rows)
            }
            Ok(Err(error)) => {
                let error = LockError::from_statement(&error, statement.name, self.0.limit);
                let moved = error == LockError::ReadOnly && place.may_move();
                if moved {
                    self.0.target.give_up(place);
                }
                let stale = moved || matches!(error, LockError::Interrupted { .. });
                Err(Failure { error, stale })
            }
            Err(_) => {
                let error = LockError::Timeout { statement: statement.name, after: limit };
                Err(Failure { error, stale: false })
            }
        }
    }

    /// Returns a healthy connection to the pool.
    fn give_back(&self, lane: Lane, lease: Checkout) {
        let Checkout { mut live, _permit: permit, .. } = lease;
        let now = self.0.clock.now();
        live.idle_since = now;
        let lanes = self.lanes(lane);
        if now.saturating_sub(live.born) < self.0.max_lifetime && lanes.max_idle > 0 {
            lanes.idle.lock().push(live);
            drop(permit);
            return;
        }
        retire(live, Some(permit));
    }

    /// Closes idle connections that are old, have been without work for too long, exceed the number to keep, or do not
    /// lead to where new connections lead. Every statement runs this, heartbeats included, so no separate task is
    /// needed.
    fn sweep(&self) {
        let now = self.0.clock.now();
        let present = self.0.target.place();
        for lanes in [&self.0.work, &self.0.heartbeat] {
            let mut idle = lanes.idle.lock();
            // The first ones have been idle for the longest time.
            let mut surplus = idle.len().saturating_sub(lanes.max_idle);
            let unwanted = idle.extract_if(.., |live| {
                let unused = now.saturating_sub(live.idle_since);
                let superfluous = surplus > 0 && unused >= LINGER;
                surplus = surplus.saturating_sub(1);
                superfluous
                    || unused >= self.0.max_idle_time
                    || now.saturating_sub(live.born) >= self.0.max_lifetime
                    || !present.as_ref().is_some_and(|present| Arc::ptr_eq(present, &live.place))
            });
            unwanted.for_each(|live| retire(live, None));
        }
    }
}

/// Closes the connection in order, in the background; the permit is kept until then.
fn retire(live: Live, permit: Option<OwnedSemaphorePermit>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            live.link.close().await;
            drop(permit);
        });
    }
}

/// How a statement failed.
struct Failure {
    error: LockError,
    /// The connection was broken, probably before the statement was sent, or its server accepts no writes while another
    /// one may.
    stale: bool,
}
