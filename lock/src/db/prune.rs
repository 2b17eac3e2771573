//! Pruning: removes old history, idle keys, dead sessions and forgotten waiters in small steps. From time to time, one
//! of the running programs does it.
//!
//! `leadergroup.prune` in SQL is the same loop, for the extension `pg_cron` and for programs in other languages. It
//! commits between its steps, so it cannot run through a pooler in transaction mode, nor within the time limit of a
//! statement.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::db::statement::{Bind, Row, Statement, get};
use crate::jitter::portion_of;
use crate::{LockError, Store};

/// Only one of the callers gets a row.
const DUE: Statement = Statement {
    name: "begin pruning",
    sql: "select true as due from leadergroup.begin_pruning($1) as due where due",
};
const TERMS: Statement =
    Statement { name: "prune terms", sql: "select * from leadergroup.prune_terms($1, $2, $3, $4)" };
const KEYS: Statement =
    Statement { name: "prune keys", sql: "select * from leadergroup.prune_keys($1, $2, $3)" };
const SESSIONS: Statement =
    Statement { name: "prune sessions", sql: "select leadergroup.prune_sessions($1, $2) as removed" };
const WAITERS: Statement =
    Statement { name: "prune waiters", sql: "select leadergroup.prune_waiters($1) as removed" };

/// How many keys one statement looks at, and how many sessions or waiters it removes.
const PAGE: i64 = 500;
/// Most terms that one statement removes: it must end in time, and must not hold rows for long.
const MOST_TERMS: i64 = 10_000;

/// How often [`housekeeping`] prunes.
const EVERY: Duration = Duration::from_mins(10);
/// How long one run may take; the next run continues.
const LIMIT: Duration = Duration::from_mins(2);

/// What pruning keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How many terms of each key are kept. The last confirmed one and later ones are always kept.
    pub terms: u32,
    /// How long free keys of programs are kept with their history. A key that is used again later continues with larger
    /// tokens.
    pub idle_keys: Duration,
    /// How long dead sessions stay readable.
    pub dead_sessions: Duration,
}

impl Default for Retention {
    /// 50 terms, a week, an hour.
    fn default() -> Self {
        Self { terms: 50, idle_keys: Duration::from_hours(7 * 24), dead_sessions: Duration::from_hours(1) }
    }
}

/// What [`Store::prune`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of terms of the history, without those of removed keys.
    pub terms: u64,
    /// The number of keys.
    pub keys: u64,
    /// The number of dead sessions.
    pub sessions: u64,
    /// The number of places in queues.
    pub waiters: u64,
}

impl Store {
    /// Removes everything beyond `retention`, in small steps: it may be stopped and repeated at any time.
    pub async fn prune(&self, retention: Retention) -> Result<Pruned, LockError> {
        let kept = i64::from(retention.terms.max(1));
        let idle_ms = millis(retention.idle_keys);
        let dead_ms = millis(retention.dead_sessions);
        Ok(Pruned {
            terms: self.walk(TERMS, |bind| bind.with(PAGE)?.with(kept)?.with(MOST_TERMS), MOST_TERMS).await?,
            keys: self.walk(KEYS, |bind| bind.with(PAGE)?.with(idle_ms), 100).await?,
            waiters: self.repeat(WAITERS, || Ok(Bind::new())).await?,
            sessions: self.repeat(SESSIONS, || Bind::new().with(dead_ms)).await?,
        })
    }

    /// Whether pruning is due. True for only one of the callers.
    async fn begin_pruning(&self, every: Duration) -> Result<bool, LockError> {
        let due: Vec<Row> = self.database.rows(DUE, Bind::new().with(millis(every))?).await?;
        Ok(!due.is_empty())
    }

    /// Walks through the pages of keys. A page is repeated while a statement removes as much from it as it may.
    async fn walk(
        &self,
        statement: Statement,
        bind: impl Fn(Bind) -> Result<Bind, LockError>,
        most: i64,
    ) -> Result<u64, LockError> {
        let (mut all, mut after) = (0, String::new());
        loop {
            let row = self.database.row(statement, bind(Bind::new().with(after.as_str())?)?).await?;
            let removed: i64 = get(&row, "removed")?;
            all += removed.unsigned_abs();
            if removed >= most {
                continue;
            }
            match get::<Option<String>>(&row, "last_key")? {
                Some(last) => after = last,
                None => return Ok(all),
            }
        }
    }

    /// Repeats a statement, whose last argument limits the rows that it removes, until there is nothing left to remove.
    async fn repeat(
        &self,
        statement: Statement,
        bind: impl Fn() -> Result<Bind, LockError>,
    ) -> Result<u64, LockError> {
        let mut all = 0;
        loop {
            let removed: i64 = get(&self.database.row(statement, bind()?.with(PAGE)?).await?, "removed")?;
            all += removed.unsigned_abs();
            if removed < PAGE {
                return Ok(all);
            }
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Prunes every ten minutes, in one of all programs that run this. A [`Client`](crate::Client) runs it by itself. Runs
/// until it is dropped.
pub async fn housekeeping(store: &Store) {
    // A random pause, so that of many short-lived programs one occasionally gets past it.
    sleep(EVERY.mul_f64(portion_of(store.database.pool.new_uuid()))).await;
    loop {
        match store.begin_pruning(EVERY).await {
            Ok(true) => match timeout(LIMIT, store.prune(Retention::default())).await {
                Ok(Ok(pruned)) => tracing::debug!(?pruned, "pruned the lock's tables"),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "could not prune the lock's tables; trying again later");
                }
                Err(_) => tracing::debug!("pruning the lock's tables takes long; the next run continues"),
            },
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "could not check whether pruning is due"),
        }
        sleep(EVERY).await;
    }
}
