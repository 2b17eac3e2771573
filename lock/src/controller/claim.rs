//! Claims: which session may change a row. Claiming a key and giving the claim up never changes holder or token.

use std::collections::HashMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::db::database::{CHUNK, check_distinct};
use crate::db::refusal::changed;
use crate::db::statement::{Bind, Statement, all_in_order, get, unexpected};
use crate::types::{LockRow, check_text};
use crate::{Changed, Key, LockError, SessionId, Store, Token, protocol::PROTOCOL};

const CLAIM: Statement = Statement { name: "claim", sql: include_str!("../sql/claim.sql") };
const UNCLAIM: Statement = Statement { name: "unclaim", sql: include_str!("../sql/unclaim.sql") };
const ROWS_OF: Statement = Statement { name: "rows of a session", sql: include_str!("../sql/rows_of.sql") };
const UNCLAIMED: Statement = Statement { name: "unclaimed rows", sql: include_str!("../sql/unclaimed.sql") };

/// Most keys in one statement that may create rows: each creation needs an entry in the server's lock table.
pub(crate) const CREATE_CHUNK: usize = 200;

/// A session's request for the right to change a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The key.
    pub key: Key,
    /// The claimant's group (UID).
    pub group: String,
    /// Whether to create the row if there is none, and to revive a tombstone of another group. Only for a caller that
    /// has just verified that its group exists; otherwise a stale cache would bring a deleted group back.
    pub may_create: bool,
    /// A group that is known to be deleted: its row may be taken over although it has no tombstone (the database was
    /// away when the group was deleted).
    pub supersedes: Option<String>,
}

/// The answer to a [`Claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The own session has the claim. Holder and token are as they were.
    Ours(LockRow),
    /// Another living session has it.
    By {
        /// The session.
        session: SessionId,
    },
    /// The row is being changed by another transaction at this moment: ask again at the next poll.
    Busy,
    /// Another group uses the key: one of another cluster, or an older one that is not known to be deleted. Nothing was
    /// changed.
    Foreign {
        /// That group.
        group: String,
    },
    /// There is no row, and `may_create` was not set.
    Missing,
    /// The row is a tombstone of this group, or it is one of another group and `may_create` was not set.
    Tombstone,
    /// A newer version of this library wrote the row; it is left alone.
    ProtocolNewer {
        /// The row's layout.
        protocol: u32,
    },
}

impl Claimed {
    /// The row, if the own session has the claim.
    pub fn ours(&self) -> Option<&LockRow> {
        match self {
            Self::Ours(row) => Some(row),
            _ => None,
        }
    }
}

/// A row that a session has claimed, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedRow {
    /// The key.
    pub key: Key,
    /// The largest token ever granted for it.
    pub token: Token,
    /// The holder's UID; none when the key is free.
    pub holder: Option<String>,
}

/// A key that no living session has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unclaimed {
    /// The key.
    pub key: Key,
    /// The group that uses it.
    pub group: String,
}

impl Store {
    /// Claims keys that no living session has claimed, and, where the claim allows it, keys whose rows have to be
    /// created first. A row that another transaction has locked is skipped. Returns one answer for each claim, in their
    /// order. Holder and token never change here, except where [`Claim::supersedes`] is used: then the holder of the
    /// deleted group is removed.
    ///
    /// Uses two statements. The first one changes the rows and returns only a few bytes, so that its locks never wait
    /// for a slow reader; the second one reads the rows that were claimed.
    pub async fn claim(&self, own: SessionId, claims: &[Claim]) -> Result<Vec<Claimed>, LockError> {
        check_distinct(claims.iter().map(|claim| &claim.key))?;
        for claim in claims {
            check_text("group", &claim.group)?;
        }
        let creating = claims.iter().any(|claim| claim.may_create);
        let chunks = claims.chunks(if creating { CREATE_CHUNK } else { CHUNK });
        let chunks: Vec<_> = chunks.map(|chunk| self.claim_chunk(own, chunk)).collect();
        stream::iter(chunks).buffered(self.database.chunks_at_once()).try_concat().await
    }

    async fn claim_chunk(&self, own: SessionId, claims: &[Claim]) -> Result<Vec<Claimed>, LockError> {
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(PROTOCOL.cast_signed())?
            .with(claims.iter().map(|claim| claim.key.as_str()).collect::<Vec<_>>())?
            .with(claims.iter().map(|claim| claim.group.as_str()).collect::<Vec<_>>())?
            .with(claims.iter().map(|claim| claim.may_create).collect::<Vec<_>>())?
            .with(claims.iter().map(|claim| claim.supersedes.as_deref()).collect::<Vec<_>>())?;
        let answers = all_in_order(claims.len(), &self.database.rows(CLAIM, bind).await?, |row| {
            Ok(match get::<&str>(row, "verdict")? {
                "ours" => None,
                "dead" => return Err(LockError::SessionDead),
                "busy" => Some(Claimed::Busy),
                "missing" => Some(Claimed::Missing),
                "foreign" => Some(Claimed::Foreign { group: get(row, "group_id")? }),
                "tombstone" => Some(Claimed::Tombstone),
                "claimed" => Some(Claimed::By { session: get::<uuid::Uuid>(row, "session")?.into() }),
                "newer" => {
                    Some(Claimed::ProtocolNewer { protocol: get::<i32>(row, "protocol")?.unsigned_abs() })
                }
                other => return Err(unexpected(CLAIM.name, other)),
            })
        })?;
        let ours = claims.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let ours: Vec<Key> = ours.map(|(claim, _)| claim.key.clone()).collect();
        let rows = self.database.read(&ours).await?;
        let mut rows: HashMap<Key, LockRow> = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        let all = claims.iter().zip(answers).map(|(claim, answer)| {
            answer.unwrap_or_else(|| match rows.remove(&claim.key) {
                Some(row) if row.session == Some(own) => Claimed::Ours(row),
                // The claim was lost between the two statements: the own session was marked dead, or the row was
                // removed by hand.
                Some(LockRow { session: Some(session), .. }) => Claimed::By { session },
                Some(_) | None => Claimed::Busy,
            })
        });
        Ok(all.collect())
    }

    /// Gives claims up, so that others can claim the keys; holders and tokens stay. Others are notified.
    pub async fn unclaim(&self, own: SessionId, keys: &[Key]) -> Result<Vec<Changed>, LockError> {
        check_distinct(keys.iter())?;
        let mut all = Vec::with_capacity(keys.len());
        let mut given_up = Vec::new();
        for chunk in keys.chunks(CHUNK) {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(PROTOCOL.cast_signed())?
                .with(chunk.iter().map(Key::as_str).collect::<Vec<_>>())?;
            let rows = self.database.rows(UNCLAIM, bind).await?;
            let changes = all_in_order(chunk.len(), &rows, changed)?;
            let gone = chunk.iter().zip(&changes).filter(|(_, change)| matches!(change, Changed::Done));
            given_up.extend(gone.map(|(key, _)| key));
            all.extend(changes);
        }
        if !given_up.is_empty() {
            self.database.claims_given_up(given_up.into_iter()).await;
        }
        Ok(all)
    }

    /// All rows that a session has claimed, in the order of the keys. Reads the whole table: meant for an occasional
    /// comparison with the caller's own state, not for every poll.
    pub async fn rows_of(&self, own: SessionId) -> Result<Vec<ClaimedRow>, LockError> {
        let rows = self.database.rows(ROWS_OF, Bind::new().with(own.as_uuid())?).await?;
        let claimed = rows.iter().map(|row| {
            Ok(ClaimedRow {
                key: Key::stored(get(row, "key")?),
                token: Token::new(get(row, "token")?),
                holder: get(row, "holder_uid")?,
            })
        });
        claimed.collect()
    }

    /// Keys that no living session has claimed, in the order of the keys, beginning after the key `after`. Tombstones
    /// are left out. Reads the whole table at worst.
    pub async fn unclaimed(&self, after: Option<&Key>, limit: u32) -> Result<Vec<Unclaimed>, LockError> {
        let bind = Bind::new().with(after.map_or("", Key::as_str))?.with(i64::from(limit))?;
        let rows = self.database.rows(UNCLAIMED, bind).await?;
        rows.iter()
            .map(|row| Ok(Unclaimed { key: Key::stored(get(row, "key")?), group: get(row, "group_id")? }))
            .collect()
    }
}
