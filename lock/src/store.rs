//! The store: the handle to the database that all operations use, and what they share.

use std::collections::HashSet;
use std::sync::Arc;

use crate::acquire::{Acquiring, Releasing};
use crate::batch::Batcher;
use crate::fence::Fence;
use crate::grant::{Confirming, Granting, Vacating};
#[cfg(feature = "memory")]
use crate::memory::{MemoryClient, MemoryDatabase};
use crate::pool::{Lane, Pool};
use crate::statement::{Bind, Row, Statement, unexpected};
use crate::stats::{Counters, Timer};
use crate::{Clock, DatabaseConfig, FencePolicy, Key, LockError, SessionId};

/// Most keys in one statement. Few enough that the answer fits into socket buffers: rows must not stay locked because
/// the server cannot send its answer to a frozen client.
pub(crate) const CHUNK: usize = 1_000;

/// How many such statements of one operation are under way at a time. Few, because other work needs connections as
/// well.
const CHUNKS_AT_ONCE: usize = 2;

const WAKE: Statement = Statement { name: "wake", sql: "select leadergroup.wake($1, $2)" };
const WAKE_ALL: Statement =
    Statement { name: "wake all", sql: "select leadergroup.wake_all(word) from unnest($1::text[]) as word" };

/// The payload of a notification to all when something may be free.
const FREED: &str = "";
/// How it begins when a session that lives gave up its claim to a key. The key follows.
pub(crate) const YIELDED: &str = "yielded ";

/// The database. Cheap to clone; connects when first used.
///
/// Each operation is one statement per thousand keys, in a transaction of its own. Every operation may be repeated
/// without harm: repeat it after [`LockError::Timeout`] or [`LockError::Interrupted`], which leave open whether it took
/// effect. All futures may be dropped at any time: the connection is then closed, and the server cancels the statement.
/// A statement that several callers wait for continues for the others.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) pool: Pool,
    /// The policy for the old holder's fenced transactions, and the permits to wait for them.
    pub(crate) fence: Arc<Fence>,
    /// The statistics of this store and its clones.
    pub(crate) counters: Arc<Counters>,
    pub(crate) batches: Batches,
}

/// Requests of the same kind that tasks make at the same time go to the server together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batches {
    pub(crate) acquire: Batcher<Acquiring>,
    pub(crate) release: Batcher<Releasing>,
    pub(crate) grant: Batcher<Granting>,
    pub(crate) confirm: Batcher<Confirming>,
    pub(crate) vacate: Batcher<Vacating>,
}

impl Store {
    /// Checks the settings; an error names the setting and the remedy. No I/O.
    pub fn new(config: &DatabaseConfig) -> Result<Self, LockError> {
        Ok(Self::on(Pool::new(config)?))
    }

    /// A store without a database, for a program that keeps running although its settings are unusable: every operation
    /// fails with this error.
    pub fn refusing(error: LockError) -> Self {
        Self::on(Pool::refusing(error))
    }

    /// The clock by which the sessions on this store judge time.
    pub fn clock(&self) -> Clock {
        self.pool.clock()
    }

    /// A new random UUID. With a database in memory, its seed determines it.
    pub fn new_uuid(&self) -> uuid::Uuid {
        self.pool.new_uuid()
    }

    /// A store for a database in memory, as one more program that uses it. See [`MemoryClient`] for a program with its
    /// own clock, settings or faults.
    #[cfg(feature = "memory")]
    pub fn in_memory(database: &MemoryDatabase) -> Self {
        MemoryClient::new(database, "program").store().unwrap_or_else(Self::refusing)
    }

    pub(crate) fn on(pool: Pool) -> Self {
        let fence = Fence::new(FencePolicy::default(), pool.work_connections());
        Self { pool, fence: Arc::new(fence), counters: Arc::default(), batches: Batches::default() }
    }

    /// The same database on separate connections, for a thread with its own runtime.
    pub(crate) fn with_own_connections(&self) -> Self {
        Self { pool: self.pool.another(), batches: Batches::default(), ..self.clone() }
    }

    /// How many statements of one operation are sent at once: an operation must not wait for its own connections.
    pub(crate) fn chunks_at_once(&self) -> usize {
        CHUNKS_AT_ONCE.min(self.pool.work_connections())
    }

    /// Runs a statement on the shared connections.
    pub(crate) async fn rows(&self, statement: Statement, bind: Bind) -> Result<Vec<Row>, LockError> {
        let _timer = Timer::start(&self.counters);
        self.pool.rows(Lane::Work, statement, bind).await
    }

    /// Runs a statement that answers with exactly one row.
    pub(crate) async fn row(&self, statement: Statement, bind: Bind) -> Result<Row, LockError> {
        self.rows(statement, bind).await?.pop().ok_or_else(|| unexpected(statement.name, "no rows"))
    }

    /// Notifies a session to look at one of its requests. Sent after the commit, in a transaction of its own: inside
    /// that transaction, NOTIFY would make the commits of the whole server queue up. It is only a hint: a failure costs
    /// the time until the next poll.
    pub(crate) async fn wake(&self, session: SessionId, grant: crate::GrantId) {
        let bind = Bind::new().with(session.as_uuid()).and_then(|bind| bind.with(grant.as_uuid()));
        self.hint(WAKE, bind).await;
    }

    /// Notifies all listeners that something may be free.
    pub(crate) async fn wake_all(&self) {
        self.hint(WAKE_ALL, Bind::new().with(vec![FREED])).await;
    }

    /// Notifies controllers that sessions that live have given up their claims to these keys.
    pub(crate) async fn claims_given_up(&self, keys: impl Iterator<Item = &Key>) {
        let words: Vec<_> = keys.map(|key| format!("{YIELDED}{key}")).collect();
        self.hint(WAKE_ALL, Bind::new().with(words)).await;
    }

    async fn hint(&self, statement: Statement, bind: Result<Bind, LockError>) {
        let sent = match bind {
            Ok(bind) => self.rows(statement, bind).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "no notification was sent; others notice at their next poll");
        }
    }
}

#[cfg(feature = "memory")]
impl MemoryClient {
    /// A store for the program. An error names a setting that is wrong.
    pub fn store(&self) -> Result<Store, LockError> {
        Ok(Store::on(Pool::in_memory(self)?))
    }
}

/// Refuses a batch that names a key twice, because it is undefined which of the two would win.
pub(crate) fn check_distinct<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<(), LockError> {
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(LockError::Invalid { what: "batch", problem: format!("names the key {key} twice") });
        }
    }
    Ok(())
}
