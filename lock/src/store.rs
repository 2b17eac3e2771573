//! The store: the handle on the database that all operations go through, and what they share.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::encode::Encode;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, Decode, Postgres, Row as _, Type};

use super::fence::Fence;
use super::pool::{Lane, Pool, Statement};
use super::short::{Freeing, Looking, Taking};
use super::stats::Counters;
use super::together::Together;
use super::{DatabaseConfig, Epoch, FencePolicy, Key, LockError};

/// Most keys in one statement. Few enough that the answer fits into socket buffers: a frozen client must not keep rows
/// locked because the server cannot get rid of its answer.
pub(super) const CHUNK: usize = 1_000;

/// How many such statements of one operation are under way at the same time, when many holders or a whole process are lost
/// at once. Few: other work needs connections, too.
const CHUNKS_AT_ONCE: usize = 2;

/// Most keys in one statement that may create rows: each creation takes a slot in the server's table of locks.
pub(super) const CREATE_CHUNK: usize = 200;

/// The channel on which hints travel.
pub(super) const CHANNEL: &str = "leadergroup";
/// What is said on it when a session that lives on gave up the charge of keys; of all else nothing is said but that
/// something is free.
pub(super) const YIELDED: &str = "yielded";

/// A hint, which need not outlive a crash: its commit does not wait for the disk.
const NOTIFY: Statement = Statement {
    name: "notify",
    sql: "select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)",
};

/// The database. Cheap to clone; connects when first used.
///
/// Each operation is one statement per thousand keys (for a key that a program holds itself: one or
/// two where it is free or held, otherwise a few), in a transaction of its own. Every one may be repeated without
/// harm; after [`LockError::Timeout`] or [`LockError::Interrupted`], when nobody knows whether it took effect, that is
/// what to do. All futures may be dropped at any time: the connection is closed then, and the server gives up the
/// statement. (What was sent together with others' wishes goes on.)
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) pool: Pool,
    /// The history that the last heartbeat saw.
    pub(super) last_epoch: Arc<Mutex<Option<Epoch>>>,
    /// Whether keys that programs hold go to new holders in it, as far as is known. For what waiters are told.
    pub(super) settled: Arc<AtomicBool>,
    /// What a change of holder does about the old holder's fenced transactions.
    pub(super) fence: Arc<Fence>,
    /// What it and its clones have done.
    pub(super) counters: Arc<Counters>,
    /// Whether the last key that was wanted was not to be had at once. So may the next one be: whoever wants it looks first.
    pub(super) keys_are_held: Arc<AtomicBool>,
    /// What its programs' tasks ask at the same time.
    pub(super) taking: Together<Taking>,
    pub(super) looking: Together<Looking>,
    pub(super) freeing: Together<Freeing>,
}

impl Store {
    /// Checks the settings; an error names the setting and the remedy. No I/O.
    pub fn new(config: &DatabaseConfig) -> Result<Self, LockError> {
        Ok(Self::on(Pool::new(config)?))
    }

    /// For a program that is to run on although its settings lead to no database: every operation ends with this error.
    pub fn refusing(error: LockError) -> Self {
        Self::on(Pool::refusing(error))
    }

    fn on(pool: Pool) -> Self {
        let fence = Fence::new(FencePolicy::default(), pool.work_connections());
        let settled = Arc::new(AtomicBool::new(true));
        Self {
            pool,
            last_epoch: Arc::default(),
            settled,
            fence: Arc::new(fence),
            counters: Arc::default(),
            taking: Together::default(),
            looking: Together::default(),
            keys_are_held: Arc::default(),
            freeing: Together::default(),
        }
    }

    /// How many statements of one operation are sent at once: an operation must not wait for its own connections.
    pub(super) fn chunks_at_once(&self) -> usize {
        CHUNKS_AT_ONCE.min(self.pool.work_connections())
    }

    /// Runs a statement on the shared connections.
    pub(super) async fn rows(&self, statement: Statement, bind: Bind) -> Result<Vec<PgRow>, LockError> {
        self.pool.rows(Lane::Work, statement, bind.into_inner()).await
    }

    /// Tells whoever listens that charges became free. In a transaction of its own, after the commit: inside, it would
    /// make the commits of the whole server queue up. Only a hint, so a failure is not worth more than a line.
    pub(super) async fn notify(&self, word: &str) {
        let sent = match Bind::new().with(CHANNEL).and_then(|bind| bind.with(word)) {
            Ok(bind) => self.rows(NOTIFY, bind).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "hint not sent; others will notice at their next poll");
        }
    }

    /// Remembers the history and says whether it is another one than before.
    pub(super) fn epoch_changed(&self, epoch: Epoch) -> bool {
        let mut last = self.last_epoch.lock().unwrap_or_else(PoisonError::into_inner);
        last.replace(epoch).is_some_and(|before| before != epoch)
    }
}

/// The arguments of a statement, in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Bind(PgArguments);

impl Bind {
    /// None yet.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// For the driver.
    pub(super) fn into_inner(self) -> PgArguments {
        self.0
    }

    /// Appends one.
    pub(super) fn with<'q, T: Encode<'q, Postgres> + Type<Postgres>>(
        mut self,
        value: T,
    ) -> Result<Self, LockError> {
        match self.0.add(value) {
            Ok(()) => Ok(self),
            Err(error) => {
                Err(LockError::Invalid { what: "argument", problem: format!("is too large: {error}") })
            }
        }
    }
}

/// One column of an answer.
pub(super) fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    row: &'r PgRow,
    column: &'static str,
) -> Result<T, LockError> {
    row.try_get(column).map_err(|error| unexpected(column, &error.to_string()))
}

/// The server answered something that this program cannot make sense of.
pub(super) fn unexpected(what: &'static str, detail: &str) -> LockError {
    LockError::Database {
        statement: what,
        code: "none".to_owned(),
        message: format!("unexpected answer: {detail}"),
    }
}

/// Collects the answers of a batch in the order of the questions.
pub(super) struct Answers<T>(Vec<Option<T>>);

impl<T> Answers<T> {
    /// For a batch of so many.
    pub(super) fn new(count: usize) -> Self {
        Self(std::iter::repeat_with(|| None).take(count).collect())
    }

    /// Files the answer that `row` gives; its place counts from 1.
    pub(super) fn put(&mut self, row: &PgRow, answer: T) -> Result<(), LockError> {
        let place: i64 = get(row, "place")?;
        let slot = usize::try_from(place - 1).ok().and_then(|index| self.0.get_mut(index));
        *slot.ok_or_else(|| unexpected("place", "out of range"))? = Some(answer);
        Ok(())
    }

    /// All of them; each question must have been answered.
    pub(super) fn finish(self) -> Result<Vec<T>, LockError> {
        self.0
            .into_iter()
            .collect::<Option<Vec<T>>>()
            .ok_or_else(|| unexpected("batch", "an answer is missing"))
    }

    /// All of them, where no row is an answer, too.
    pub(super) fn or(self, none: &T) -> Vec<T>
    where
        T: Clone,
    {
        self.0.into_iter().map(|answer| answer.unwrap_or_else(|| none.clone())).collect()
    }
}

/// Refuses a batch that names a key twice: which of the two would win is anybody's guess.
pub(super) fn check_distinct<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<(), LockError> {
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(LockError::Invalid { what: "batch", problem: format!("names the key {key} twice") });
        }
    }
    Ok(())
}
