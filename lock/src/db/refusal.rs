//! Why a row was not changed.

use crate::db::statement::{Row, get};
use crate::{LockError, SessionId};

/// The answer to a change of one key that returns no other values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// The row is as requested, by this call or an earlier one.
    Done,
    /// Nothing was changed.
    Refused(Refusal),
}

/// Why a row was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The row has another token than expected, or another holder, or none.
    TokenChanged,
    /// The own session has not claimed the key.
    Unclaimed {
        /// The session that has claimed it, if any.
        session: Option<SessionId>,
    },
    /// The own session is dead, closed or unknown: register a new one.
    SessionDead,
    /// The row is being changed, or fenced transactions are under way, at this moment: try again.
    Busy,
    /// The group was deleted.
    Tombstone,
    /// Another group uses the key.
    Foreign {
        /// That group.
        group: String,
    },
    /// A newer version of this library wrote the row.
    ProtocolNewer {
        /// The row's layout.
        protocol: u32,
    },
    /// There is no such row.
    Missing,
}

/// The refusal for a verdict; `None` for `done`.
pub(crate) fn refusal(row: &Row, verdict: &str) -> Result<Option<Refusal>, LockError> {
    Ok(Some(match verdict {
        "done" => return Ok(None),
        "dead" => Refusal::SessionDead,
        "missing" => Refusal::Missing,
        "tombstone" => Refusal::Tombstone,
        "changed" => Refusal::TokenChanged,
        "unclaimed" => {
            Refusal::Unclaimed { session: get::<Option<uuid::Uuid>>(row, "session")?.map(Into::into) }
        }
        "foreign" => Refusal::Foreign { group: get(row, "group_id")? },
        "newer" => Refusal::ProtocolNewer { protocol: get::<i32>(row, "protocol")?.unsigned_abs() },
        // `busy`, `fenced`, `forbidden`, and whatever a later version of the schema answers.
        _ => Refusal::Busy,
    }))
}

/// The answer for a row with a verdict.
pub(crate) fn changed(row: &Row) -> Result<Changed, LockError> {
    let verdict: &str = get(row, "verdict")?;
    Ok(refusal(row, verdict)?.map_or(Changed::Done, Changed::Refused))
}
