//! Reading the rows of locks, with their pending terms.

use jiff::Timestamp;

use crate::db::database::{CHUNK, Database};
use crate::db::statement::{Bind, Row, Statement, get, unexpected};
use crate::types::LockRow;
use crate::{Holder, Key, LockError, Term, Token};

const READ: Statement = Statement { name: "read", sql: include_str!("../sql/read.sql") };

impl Database {
    /// Reads rows, in the order of their keys. Keys without a row are left out. Nothing is locked.
    pub(crate) async fn read(&self, keys: &[Key]) -> Result<Vec<LockRow>, LockError> {
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
}

pub(crate) fn holder(row: &Row) -> Result<Option<Holder>, LockError> {
    let Some(uid) = get::<Option<String>>(row, "holder_uid")? else { return Ok(None) };
    Ok(Some(Holder { uid, namespace: get(row, "holder_namespace")?, name: get(row, "holder_name")? }))
}

fn lock_row(row: &Row, key: &str) -> Result<LockRow, LockError> {
    Ok(LockRow {
        key: Key::stored(key.to_owned()),
        holder: holder(row)?,
        token: Token::new(get(row, "token")?),
        grant: get::<Option<uuid::Uuid>>(row, "grant_id")?.map(Into::into),
        confirmed: get(row, "confirmed")?,
        session: get::<Option<uuid::Uuid>>(row, "session")?.map(Into::into),
        group: get(row, "group_id")?,
        pending: Vec::new(),
        tombstone: get(row, "tombstone")?,
    })
}

/// The term in a row's `term_` columns, if any.
pub(crate) fn term(row: &Row) -> Result<Option<Term>, LockError> {
    let Some(token) = get::<Option<i64>>(row, "term_token")? else { return Ok(None) };
    Ok(Some(Term {
        token: Token::new(token),
        grant: get::<Option<uuid::Uuid>>(row, "term_grant_id")?.unwrap_or_default().into(),
        holder: Holder {
            uid: get(row, "term_holder_uid")?,
            namespace: get(row, "term_holder_namespace")?,
            name: get(row, "term_holder_name")?,
        },
        reason: get::<Option<String>>(row, "term_reason")?.unwrap_or_default(),
        granted_at: timestamp(row, "term_granted_at_us")?,
        confirmed: get(row, "term_confirmed")?,
    }))
}

/// A column with microseconds since 1970.
pub(crate) fn timestamp(row: &Row, column: &'static str) -> Result<Timestamp, LockError> {
    Timestamp::from_microsecond(get(row, column)?).map_err(|error| unexpected(column, &error.to_string()))
}
