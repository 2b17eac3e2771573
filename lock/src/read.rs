//! Reading rows, and removing what nobody needs any more.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::postgres::PgRow;

use super::pool::Statement;
use super::store::{Bind, CHUNK, get, unexpected};
use super::{GrantId, Key, LockError, LockRow, Owner, Pruned, Store, Term, Token};

const READ: Statement = Statement { name: "read", sql: include_str!("sql/read.sql") };
const PRUNE_TERMS: Statement = Statement { name: "prune terms", sql: include_str!("sql/prune_terms.sql") };
const PRUNE_SESSIONS: Statement =
    Statement { name: "prune sessions", sql: include_str!("sql/prune_sessions.sql") };

const PRUNE_WAITERS: Statement =
    Statement { name: "prune waiters", sql: include_str!("sql/prune_waiters.sql") };

/// Most keys, sessions or waiters, that one statement of the clean-up looks at: it must never hold rows for long.
const PRUNE_CHUNK: i64 = 500;

impl Store {
    /// Reads rows, in the order of their keys. Keys without a row are left out. Nothing is locked.
    pub async fn read(&self, keys: &[Key]) -> Result<Vec<LockRow>, LockError> {
        let mut rows: Vec<LockRow> = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(CHUNK) {
            let keys: Vec<_> = chunk.iter().map(Key::as_str).collect();
            for row in &self.rows(READ, Bind::new().with(keys)?).await? {
                let key: &str = get(row, "key")?;
                if rows.last().is_none_or(|last| last.key.as_str() != key) {
                    rows.push(lock_row(row, key)?);
                }
                if let (Some(last), Some(term)) = (rows.last_mut(), term(row)?) {
                    last.pending.push(term);
                }
            }
        }
        Ok(rows)
    }

    /// As [`read`](Self::read), by key.
    pub(super) async fn read_map(&self, keys: &[Key]) -> Result<HashMap<Key, LockRow>, LockError> {
        Ok(self.read(keys).await?.into_iter().map(|row| (row.key.clone(), row)).collect())
    }

    /// Shortens the history to `keep_terms` terms a key (never touching the last confirmed one or a later one) and
    /// removes the places in queues of the dead, and sessions that have been dead for `dead_for` and that no row remembers.
    /// In small steps; meant to run about once an hour in one of the processes, though more often and in all does no harm.
    pub async fn prune(&self, keep_terms: u32, dead_for: Duration) -> Result<Pruned, LockError> {
        let mut pruned = Pruned::default();
        let mut after = Some(String::new());
        while let Some(key) = after {
            let bind = Bind::new().with(key)?.with(PRUNE_CHUNK)?.with(i64::from(keep_terms.max(1)))?;
            let rows = self.rows(PRUNE_TERMS, bind).await?;
            let row = rows.first().ok_or_else(|| unexpected("prune", "no rows"))?;
            pruned.terms += get::<i64>(row, "removed")?.unsigned_abs();
            // The next step begins behind the last key, so this ends with the table.
            after = get(row, "last_key")?;
        }
        let dead_ms = i64::try_from(dead_for.as_millis()).unwrap_or(i64::MAX);
        pruned.waiters = self.prune_all(PRUNE_WAITERS, || Ok(Bind::new())).await?;
        pruned.sessions = self.prune_all(PRUNE_SESSIONS, || Bind::new().with(dead_ms)).await?;
        Ok(pruned)
    }

    /// Repeats a statement, whose last argument is how many it may remove, until there is no more to remove.
    async fn prune_all(
        &self,
        statement: Statement,
        bind: impl Fn() -> Result<Bind, LockError>,
    ) -> Result<u64, LockError> {
        let mut all = 0;
        loop {
            let rows = self.rows(statement, bind()?.with(PRUNE_CHUNK)?).await?;
            let removed: i64 = rows.first().map_or(Ok(0), |row| get(row, "removed"))?;
            all += removed.unsigned_abs();
            if removed < PRUNE_CHUNK {
                return Ok(all);
            }
        }
    }
}

fn lock_row(row: &PgRow, key: &str) -> Result<LockRow, LockError> {
    let owner = match get::<Option<String>>(row, "owner_uid")? {
        Some(uid) => {
            Some(Owner { uid, namespace: get(row, "owner_namespace")?, name: get(row, "owner_name")? })
        }
        None => None,
    };
    Ok(LockRow {
        key: Key::stored(key.to_owned()),
        owner,
        token: Token::new(get(row, "token")?),
        grant: get::<Option<uuid::Uuid>>(row, "grant_id")?.map(GrantId::from),
        confirmed: get(row, "confirmed")?,
        session: get::<Option<uuid::Uuid>>(row, "session")?.map(Into::into),
        group: get(row, "group_id")?,
        protocol: get::<i32>(row, "protocol")?.unsigned_abs(),
        pending: Vec::new(),
        lock_timestamp: timestamp(row, "lock_timestamp_us")?,
        tombstone: get(row, "tombstone")?,
    })
}

/// The term that a row's `term_` columns speak of, if any.
pub(super) fn term(row: &PgRow) -> Result<Option<Term>, LockError> {
    let Some(token) = get::<Option<i64>>(row, "term_token")? else { return Ok(None) };
    Ok(Some(Term {
        token: Token::new(token),
        grant: get::<uuid::Uuid>(row, "term_grant_id")?.into(),
        owner: Owner {
            uid: get(row, "term_owner_uid")?,
            namespace: get(row, "term_owner_namespace")?,
            name: get(row, "term_owner_name")?,
        },
        reason: get(row, "term_reason")?,
        granted_at: timestamp(row, "term_granted_at_us")?,
        confirmed: get(row, "term_confirmed")?,
    }))
}

/// A column with microseconds since 1970.
pub(super) fn timestamp(row: &PgRow, column: &'static str) -> Result<Timestamp, LockError> {
    Timestamp::from_microsecond(get(row, column)?).map_err(|error| unexpected(column, &error.to_string()))
}
