//! What the statements that change rows answer for each key: one word, and a little about the row.

use sqlx::postgres::PgRow;

use super::store::{get, unexpected};
use super::{Changed, LockError, Refusal};

/// The word for one key, where all statements use the same words. `None` for `done`; a changed token comes back without
/// the row, which has to be read.
pub(super) fn refusal(row: &PgRow, verdict: &str) -> Result<Option<Refusal>, LockError> {
    Ok(Some(match verdict {
        "done" => return Ok(None),
        "dead" => Refusal::SessionDead,
        "busy" => Refusal::Busy,
        "missing" => Refusal::Missing,
        "tombstone" => Refusal::Tombstone,
        "changed" => Refusal::TokenChanged { row: None },
        "not-ours" => {
            Refusal::NotOurs { session: get::<Option<uuid::Uuid>>(row, "session")?.map(Into::into) }
        }
        "foreign" => Refusal::Foreign { group: get(row, "group_id")? },
        "newer" => Refusal::ProtocolNewer { protocol: get::<i32>(row, "protocol")?.unsigned_abs() },
        other => return Err(unexpected("verdict", other)),
    }))
}

/// The answer for one key of a change that either is done or refused.
pub(super) fn changed(row: &PgRow) -> Result<Changed, LockError> {
    let verdict: &str = get(row, "verdict")?;
    Ok(refusal(row, verdict)?.map_or(Changed::Done, Changed::Refused))
}
