//! Pruning: from time to time, one of the running programs removes old history, idle keys, dead sessions and stale
//! waiters in small steps.

use std::time::Duration;

use sqlx::postgres::PgRow;
use tokio::time::{sleep, timeout};

use crate::pool::Statement;
use crate::store::{Bind, get};
use crate::wait::portion;
use crate::{LockError, Store};

const DUE: Statement = Statement {
    name: "begin pruning",
    sql: "update leadergroup.meta set pruned_at = now() \
          where pruned_at < now() - $1 * interval '1 millisecond' \
          returning set_config('synchronous_commit', 'local', true) is not null as due",
};
const TERMS: Statement = Statement { name: "prune terms", sql: include_str!("sql/prune_terms.sql") };
const KEYS: Statement = Statement { name: "prune keys", sql: include_str!("sql/prune_keys.sql") };
const SESSIONS: Statement = Statement { name: "prune sessions", sql: include_str!("sql/prune_sessions.sql") };
const WAITERS: Statement = Statement { name: "prune waiters", sql: include_str!("sql/prune_waiters.sql") };

/// Keys that one statement looks at, and sessions or waiters that it removes.
const PAGE: i64 = 500;
/// Terms that one statement removes at most: a statement must end in time, and not hold rows for long.
const MOST_TERMS: i64 = 10_000;

/// How often [`housekeeping`] prunes.
const EVERY: Duration = Duration::from_mins(10);
/// Time limit for one run. The rest is done by the next run.
const LIMIT: Duration = Duration::from_mins(2);

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Terms of each key. The last confirmed one and later ones are always kept.
    pub terms: u32,
    /// How long free keys of programs are kept with their history. A key that comes back later continues with larger
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
pub struct Pruned {
    /// Terms of the history, without those of removed keys.
    pub terms: u64,
    /// Keys.
    pub keys: u64,
    /// Dead sessions.
    pub sessions: u64,
    /// Places in queues.
    pub waiters: u64,
}

impl Store {
    /// Removes what is not to be kept. In small steps, so that it may be stopped and repeated at any time.
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

    /// Processes the keys page by page. If a statement reached its limit on a page, that page is processed again.
    async fn walk(
        &self,
        statement: Statement,
        bind: impl Fn(Bind) -> Result<Bind, LockError>,
        most: i64,
    ) -> Result<u64, LockError> {
        let (mut all, mut after) = (0, String::new());
        loop {
            let row = self.row(statement, bind(Bind::new().with(after.as_str())?)?).await?;
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

    /// Repeats a statement, whose last argument is how many rows it may remove, until there is no more to remove.
    async fn repeat(
        &self,
        statement: Statement,
        bind: impl Fn() -> Result<Bind, LockError>,
    ) -> Result<u64, LockError> {
        let mut all = 0;
        loop {
            let removed: i64 = get(&self.row(statement, bind()?.with(PAGE)?).await?, "removed")?;
            all += removed.unsigned_abs();
            if removed < PAGE {
                return Ok(all);
            }
        }
    }

    /// Whether the last pruning is at least this long ago. Returns true to only one of the callers.
    async fn pruning_is_due(&self, every: Duration) -> Result<bool, LockError> {
        let rows: Vec<PgRow> = self.rows(DUE, Bind::new().with(millis(every))?).await?;
        Ok(!rows.is_empty())
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Prunes every ten minutes, in one of all programs that run this. A [`Client`](crate::Client) does so by itself. Runs until
/// it is dropped.
pub async fn housekeeping(store: &Store) {
    // Of many programs that live for a short time only, one now and then gets as far as this.
    sleep(EVERY.mul_f64(portion())).await;
    loop {
        match store.pruning_is_due(EVERY).await {
            Ok(true) => match timeout(LIMIT, store.prune(Retention::default())).await {
                Ok(Ok(pruned)) => tracing::debug!(?pruned, "pruned the lock's tables"),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "could not prune the lock's tables; trying again later");
                }
                Err(_) => {
                    tracing::debug!("pruning the lock's tables takes long; the next run continues");
                }
            },
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "could not check whether pruning is due"),
        }
        sleep(EVERY).await;
    }
}
