//! Charge: which session may change a row. Taking and giving it up never touches holder or token.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::model::check_text;
use super::pool::Statement;
use super::store::{Answers, Bind, CHUNK, CREATE_CHUNK, YIELDED, check_distinct, get, unexpected};
use super::verdict::changed;
use super::{
    Changed, Claim, Claimed, Held, Key, LockError, LockRow, PROTOCOL, SessionId, Store, Token, Unclaimed,
};

const CLAIM: Statement = Statement { name: "claim", sql: include_str!("sql/claim.sql") };
const YIELD: Statement = Statement { name: "yield", sql: include_str!("sql/yield_charge.sql") };
const ROWS_OF: Statement = Statement { name: "rows of a session", sql: include_str!("sql/rows_of.sql") };
const UNCLAIMED: Statement = Statement { name: "unclaimed rows", sql: include_str!("sql/unclaimed.sql") };

impl Store {
    /// Takes charge of keys: of rows that nobody or no living session is in charge of, and, where the claim allows it, of
    /// rows that have to be made first. A row that another transaction has locked is skipped. One answer for each claim,
    /// in their order. Neither holder nor token ever changes here, with one exception that [`Claim::supersedes`] asks for:
    /// the holder of a group that is gone is gone, too.
    ///
    /// Two statements: the change itself answers in a few bytes, so that its locks never wait for a slow reader; then the
    /// rows that are ours are read.
    pub async fn claim(&self, own: SessionId, claims: &[Claim]) -> Result<Vec<Claimed>, LockError> {
        check_distinct(claims.iter().map(|claim| &claim.key))?;
        for claim in claims {
            check_text("group", &claim.group)?;
        }
        let creating = claims.iter().any(|claim| claim.may_create);
        let chunks = claims.chunks(if creating { CREATE_CHUNK } else { CHUNK });
        let chunks: Vec<_> = chunks.map(|chunk| self.claim_chunk(own, chunk)).collect();
        stream::iter(chunks).buffered(self.chunks_at_once()).try_concat().await
    }

    async fn claim_chunk(&self, own: SessionId, claims: &[Claim]) -> Result<Vec<Claimed>, LockError> {
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
            .with(claims.iter().map(|claim| claim.key.as_str()).collect::<Vec<_>>())?
            .with(claims.iter().map(|claim| claim.group.as_str()).collect::<Vec<_>>())?
            .with(claims.iter().map(|claim| claim.may_create).collect::<Vec<_>>())?
            .with(claims.iter().map(|claim| claim.supersedes.as_deref()).collect::<Vec<_>>())?;
        let mut answers = Answers::new(claims.len());
        for row in &self.rows(CLAIM, bind).await? {
            let group = || get::<Option<String>>(row, "group_id").map(Option::unwrap_or_default);
            let answer = match get::<&str>(row, "verdict")? {
                "ours" => None,
                "dead" => return Err(LockError::SessionDead),
                "busy" => Some(Claimed::Busy),
                "missing" => Some(Claimed::Missing),
                "foreign" => Some(Claimed::Foreign { group: group()? }),
                "tombstone" => Some(Claimed::Tombstone { group: group()? }),
                "charged" => Some(Claimed::Charged { session: get::<uuid::Uuid>(row, "session")?.into() }),
                "newer" => {
                    Some(Claimed::ProtocolNewer { protocol: get::<i32>(row, "protocol")?.unsigned_abs() })
                }
                other => return Err(unexpected("claim", other)),
            };
            answers.put(row, answer)?;
        }
        let answers = answers.finish()?;
        let ours: Vec<Key> = claims
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_none())
            .map(|(c, _)| c.key.clone())
            .collect();
        let mut rows = self.read_map(&ours).await?;
        let settled = claims.iter().zip(answers).map(|(claim, answer)| {
            answer.unwrap_or_else(|| match rows.remove(&claim.key) {
                Some(row) if row.session == Some(own) => Claimed::Ours(row),
                // Lost again between the two statements: the own session was marked dead, or the row was removed by hand.
                Some(LockRow { session: Some(session), .. }) => Claimed::Charged { session },
                Some(_) | None => Claimed::Busy,
            })
        });
        Ok(settled.collect())
    }

    /// Gives up the charge of keys, so that others can take it; holders and tokens stay. Others get a hint.
    pub async fn yield_charge(&self, own: SessionId, keys: &[Key]) -> Result<Vec<Changed>, LockError> {
        check_distinct(keys.iter())?;
        let mut all = Vec::with_capacity(keys.len());
        let mut freed = false;
        for chunk in keys.chunks(CHUNK) {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
                .with(chunk.iter().map(Key::as_str).collect::<Vec<_>>())?;
            let mut answers = Answers::new(chunk.len());
            for row in &self.rows(YIELD, bind).await? {
                freed |= get::<bool>(row, "changed")?;
                answers.put(row, changed(row)?)?;
            }
            all.extend(answers.finish()?);
        }
        if freed {
            self.notify(YIELDED).await;
        }
        Ok(all)
    }

    /// All rows that a session is in charge of, in the order of the keys. Reads the whole table: for a slow comparison
    /// with what one believes, not for every poll.
    pub async fn rows_of(&self, own: SessionId) -> Result<Vec<Held>, LockError> {
        let rows = self.rows(ROWS_OF, Bind::new().with(own.as_uuid())?).await?;
        let held = rows.iter().map(|row| {
            Ok(Held {
                key: Key::stored(get(row, "key")?),
                token: Token::new(get(row, "token")?),
                owner: get(row, "owner_uid")?,
            })
        });
        held.collect()
    }

    /// Keys of which no living session is in charge, in the order of the keys, beginning after `after`. Tombstones are
    /// left out. Reads the whole table at worst.
    pub async fn unclaimed(&self, after: Option<&Key>, limit: u32) -> Result<Vec<Unclaimed>, LockError> {
        let bind = Bind::new().with(after.map_or("", Key::as_str))?.with(i64::from(limit))?;
        let rows = self.rows(UNCLAIMED, bind).await?;
        rows.iter()
            .map(|row| Ok(Unclaimed { key: Key::stored(get(row, "key")?), group: get(row, "group_id")? }))
            .collect()
    }
}
