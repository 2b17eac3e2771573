//! The store: the handle on the database that all operations go through, and what they share.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::encode::Encode;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, Decode, Postgres, Row as _, Type};

use crate::acquire::{Acquiring, Releasing};
use crate::batch::Batcher;
use crate::fence::Fence;
use crate::grant::{Confirming, Granting, Vacating};
use crate::pool::{Lane, Pool, Statement};
use crate::stats::{Counters, Timer};
use crate::{DatabaseConfig, FencePolicy, Key, LockError, SessionId};

/// Most keys in one statement. Few enough that the answer fits into socket buffers: a frozen client must not keep rows
/// locked because the server cannot send its answer.
pub(crate) const CHUNK: usize = 1_000;

/// How many such statements of one operation are under way at a time. Few: other work needs connections, too.
const CHUNKS_AT_ONCE: usize = 2;

const WAKE: Statement = Statement { name: "wake", sql: "select leadergroup.wake($1, $2)" };
const WAKE_ALL: Statement = Statement { name: "wake all", sql: "select leadergroup.wake_all($1)" };

/// The word of [`Store::wake_all`] when something may be free.
pub(crate) const FREED: &str = "";
/// Its word when a session gave up claims and lives on.
pub(crate) const YIELDED: &str = "yielded";

/// The database. Cheap to clone; connects when first used.
///
/// Each operation is one statement per thousand keys in a transaction of its own. Every operation may be repeated
/// without harm; after [`LockError::Timeout`] or [`LockError::Interrupted`], when it is unknown whether it took
/// effect, repeat it. All futures may be dropped at any time: the connection is then closed, and the server gives up
/// the statement. A statement that several callers wait for runs on for the others.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) pool: Pool,
    /// What a change of holder does about the old holder's fenced transactions.
    pub(crate) fence: Arc<Fence>,
    /// What this store and its clones have done.
    pub(crate) counters: Arc<Counters>,
    pub(crate) batches: Batches,
}

/// What tasks ask for at the same time goes to the server together.
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

    /// For a program that is to keep running although its settings lead to no database: every operation ends with this error.
    pub fn refusing(error: LockError) -> Self {
        Self::on(Pool::refusing(error))
    }

    fn on(pool: Pool) -> Self {
        let fence = Fence::new(FencePolicy::default(), pool.work_connections());
        Self { pool, fence: Arc::new(fence), counters: Arc::default(), batches: Batches::default() }
    }

    /// The same database on connections of its own, for a thread with a runtime of its own.
    pub(crate) fn with_own_connections(&self) -> Self {
        Self { pool: self.pool.another(), batches: Batches::default(), ..self.clone() }
    }

    /// How many statements of one operation are sent at once: an operation must not wait for its own connections.
    pub(crate) fn chunks_at_once(&self) -> usize {
        CHUNKS_AT_ONCE.min(self.pool.work_connections())
    }

    /// Runs a statement on the shared connections.
    pub(crate) async fn rows(&self, statement: Statement, bind: Bind) -> Result<Vec<PgRow>, LockError> {
        let _timer = Timer::start(&self.counters);
        self.pool.rows(Lane::Work, statement, bind.into_inner()).await
    }

    /// Runs a statement that answers with exactly one row.
    pub(crate) async fn row(&self, statement: Statement, bind: Bind) -> Result<PgRow, LockError> {
        self.rows(statement, bind).await?.pop().ok_or_else(|| unexpected(statement.name, "no rows"))
    }

    /// Tells a session to look at one of its requests. After the commit and in a transaction of its own, as inside it would
    /// make the commits of the whole server queue up. Only a hint: a failure costs the time until the next poll.
    pub(crate) async fn wake(&self, session: SessionId, grant: crate::GrantId) {
        let bind = Bind::new().with(session.as_uuid()).and_then(|bind| bind.with(grant.as_uuid()));
        self.hint(WAKE, bind).await;
    }

    /// Tells all that listen that something may be free.
    pub(crate) async fn wake_all(&self, word: &str) {
        self.hint(WAKE_ALL, Bind::new().with(word)).await;
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

/// The arguments of a statement, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bind(PgArguments);

impl Bind {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// For the driver.
    pub(crate) fn into_inner(self) -> PgArguments {
        self.0
    }

    /// Appends one.
    pub(crate) fn with<'q, T: Encode<'q, Postgres> + Type<Postgres>>(
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
pub(crate) fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    row: &'r PgRow,
    column: &'static str,
) -> Result<T, LockError> {
    row.try_get(column).map_err(|error| unexpected(column, &error.to_string()))
}

/// The server answered something that this program does not understand.
pub(crate) fn unexpected(what: &'static str, detail: &str) -> LockError {
    LockError::Database {
        statement: what,
        code: "none".to_owned(),
        message: format!("unexpected answer: {detail}"),
    }
}

/// Puts the answers of a batch into the order of the questions: `None` where no row answers one.
pub(crate) fn in_order<T>(
    count: usize,
    rows: &[PgRow],
    read: impl Fn(&PgRow) -> Result<T, LockError>,
) -> Result<Vec<Option<T>>, LockError> {
    let mut answers: Vec<Option<T>> = std::iter::repeat_with(|| None).take(count).collect();
    for row in rows {
        // Places count from 1.
        let place: i64 = get(row, "place")?;
        let slot = usize::try_from(place - 1).ok().and_then(|index| answers.get_mut(index));
        *slot.ok_or_else(|| unexpected("place", "out of range"))? = Some(read(row)?);
    }
    Ok(answers)
}

/// The same where every question must have been answered.
pub(crate) fn all_in_order<T>(
    count: usize,
    rows: &[PgRow],
    read: impl Fn(&PgRow) -> Result<T, LockError>,
) -> Result<Vec<T>, LockError> {
    let answers: Option<Vec<T>> = in_order(count, rows, read)?.into_iter().collect();
    answers.ok_or_else(|| unexpected("batch", "an answer is missing"))
}

/// Refuses a batch that names a key twice: which of the two would win is anybody's guess.
pub(crate) fn check_distinct<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<(), LockError> {
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(LockError::Invalid { what: "batch", problem: format!("names the key {key} twice") });
        }
    }
    Ok(())
}
