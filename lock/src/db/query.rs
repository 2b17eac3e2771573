//! What people ask about locks, and the one change that a person may make to a lock: releasing a key by force.

use std::time::Duration;

use jiff::Timestamp;

use crate::db::refusal::refusal;
use crate::db::rows::{holder, term, timestamp};
use crate::db::statement::{Bind, Row, Statement, get, unexpected};
use crate::types::LockRow;
use crate::{Changed, Holder, Key, LockError, SessionId, Store, Term, Token};

const INFO: Statement =
    Statement { name: "show", sql: concat!(include_str!("../sql/info.sql"), "where l.key = $1") };
const LIST: Statement = Statement {
    name: "list",
    sql: concat!(
        include_str!("../sql/info.sql"),
        "where l.key > $1 and starts_with(l.key, $2) order by l.key limit $3"
    ),
};
const HISTORY: Statement = Statement { name: "history", sql: include_str!("../sql/history.sql") };
const WAITERS: Statement = Statement { name: "list waiters", sql: include_str!("../sql/waiters.sql") };
const SUMMARY: Statement = Statement { name: "summary", sql: include_str!("../sql/summary.sql") };

/// Most rows in one answer of [`Store::list`], [`Store::waiters`] and [`Store::history`].
pub const LONGEST_LIST: u32 = 1_000;

/// A lock, as shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The key.
    pub key: Key,
    /// The group that uses it.
    pub group: String,
    /// The holder, if there is one.
    pub holder: Option<Holder>,
    /// The largest token ever granted for the key.
    pub token: Token,
    /// Whether the promotion of the holder is complete.
    pub confirmed: bool,
    /// Whether the group was deleted; the row then only keeps the token.
    pub tombstone: bool,
    /// When the holder last changed, by the database's clock.
    pub since: Timestamp,
    /// The session that has claimed it, or whose program holds it.
    pub session: Option<SessionInfo>,
    /// What the holder has [published](crate::Guard::publish).
    pub data: Option<String>,
    /// A program's key whose session is dead, or so long dead that its row was removed.
    pub(crate) abandoned: bool,
}

/// A session, as shown to people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// Its name.
    pub name: String,
    /// Whether it was marked dead or closed.
    pub dead: bool,
    /// Its last heartbeat, by the database's clock.
    pub seen: Timestamp,
    /// How long ago that was, by the same clock.
    pub silent: Duration,
    /// Its ttl.
    pub ttl: Duration,
}

impl SessionInfo {
    /// Whether it has sent no heartbeat for so long that its process has probably ended. It is marked dead once another
    /// session has watched it for its ttl.
    pub fn is_silent(&self) -> bool {
        !self.dead && self.silent >= self.ttl * 2
    }
}

/// A term in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TermInfo {
    /// Token, holder, reason and beginning of the term.
    pub term: Term,
    /// The session that had claimed the key at the end of the term.
    pub session: Option<SessionId>,
    /// When and why it ended; `None` while it lasts.
    pub ended: Option<(Timestamp, String)>,
}

/// A waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The holder, once the request is granted.
    pub holder: Holder,
    /// The session that waits.
    pub session: SessionId,
    /// Since when, by the database's clock.
    pub since: Timestamp,
    /// The reason that the waiter gave.
    pub reason: String,
}

/// The numbers of sessions, locks and waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Sessions that were neither marked dead nor closed.
    pub living_sessions: u64,
    /// Locks, free ones included, but not those of deleted groups.
    pub locks: u64,
    /// Those with a holder.
    pub held: u64,
    /// Places in queues.
    pub waiting: u64,
}

impl Store {
    /// Reads rows, in the order of their keys. Keys without a row are left out. Nothing is locked.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) async fn read(&self, keys: &[Key]) -> Result<Vec<LockRow>, LockError> {
        self.database.read(keys).await
    }

    /// The waiters for a key, the next one first; at most `limit` and at most [`LONGEST_LIST`].
    pub async fn waiters(&self, key: &Key, limit: u32) -> Result<Vec<WaiterInfo>, LockError> {
        let bind = Bind::new().with(key.as_str())?.with(i64::from(limit.min(LONGEST_LIST)))?;
        let waiter = |row: &Row| {
            Ok(WaiterInfo {
                holder: Holder {
                    uid: get(row, "holder_uid")?,
                    namespace: get(row, "holder_namespace")?,
                    name: get(row, "holder_name")?,
                },
                session: get::<uuid::Uuid>(row, "session")?.into(),
                since: timestamp(row, "asked_at_us")?,
                reason: get(row, "reason")?,
            })
        };
        self.database.rows(WAITERS, bind).await?.iter().map(waiter).collect()
    }

    /// Counts sessions, locks and waiters. Reads whole tables: for people, not for loops.
    pub async fn summary(&self) -> Result<Summary, LockError> {
        let rows = self.database.rows(SUMMARY, Bind::new()).await?;
        let row = rows.first().ok_or_else(|| unexpected("summary", "no rows"))?;
        let number = |column| get::<i64>(row, column).map(i64::unsigned_abs);
        Ok(Summary {
            living_sessions: number("living_sessions")?,
            locks: number("locks")?,
            held: number("held")?,
            waiting: number("waiting")?,
        })
    }

    /// The locks whose keys begin with `prefix`, in the order of their keys, beginning after the key `after`; at most
    /// `limit` and at most [`LONGEST_LIST`].
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Vec<LockInfo>, LockError> {
        let after = after.map_or("", Key::as_str);
        let bind = Bind::new().with(after)?.with(prefix)?.with(i64::from(limit.min(LONGEST_LIST)))?;
        self.database.rows(LIST, bind).await?.iter().map(lock_info).collect()
    }

    /// One lock, if there is a row for the key.
    pub async fn info(&self, key: &Key) -> Result<Option<LockInfo>, LockError> {
        let rows = self.database.rows(INFO, Bind::new().with(key.as_str())?).await?;
        rows.first().map(lock_info).transpose()
    }

    /// The terms of a key, the latest first; at most `limit` and at most [`LONGEST_LIST`]. Older ones may have been
    /// [pruned](Store::prune).
    pub async fn history(&self, key: &Key, limit: u32) -> Result<Vec<TermInfo>, LockError> {
        let bind = Bind::new().with(key.as_str())?.with(i64::from(limit.min(LONGEST_LIST)))?;
        self.database.rows(HISTORY, bind).await?.iter().map(term_info).collect()
    }

    /// Releases a key by force. The history keeps the reason, which should name the person. Does so only if the token
    /// is still `token`. A fence refuses later writes of the old holder.
    ///
    /// A program's key goes to the first living waiter at once, without the lock delay of the old holder. The old
    /// holder learns of it with its next heartbeat, when its guard is [lost](crate::Guard::lost); that is *after*
    /// another holder may have begun. A group of the operator loses its holder and its claim, and the token stays.
    pub async fn force_release(&self, key: &Key, token: Token, reason: &str) -> Result<Changed, LockError> {
        let row = self.end_hold(None, key, token, reason, None).await?;
        Ok(match get::<&str>(&row, "verdict")? {
            "free" => Changed::Done,
            verdict => match refusal(&row, verdict)? {
                None => {
                    self.database.wake_all().await;
                    Changed::Done
                }
                Some(refusal) => Changed::Refused(refusal),
            },
        })
    }
}

fn lock_info(row: &Row) -> Result<LockInfo, LockError> {
    let session = match get::<Option<uuid::Uuid>>(row, "session")? {
        Some(id) => {
            let millis =
                |column| get::<i64>(row, column).map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
            Some(SessionInfo {
                id: id.into(),
                name: get(row, "session_name")?,
                dead: get(row, "session_dead")?,
                seen: timestamp(row, "session_seen_us")?,
                silent: millis("session_silent_ms")?,
                ttl: millis("session_ttl_ms")?,
            })
        }
        None => None,
    };
    Ok(LockInfo {
        key: Key::stored(get(row, "key")?),
        group: get(row, "group_id")?,
        holder: holder(row)?,
        token: Token::new(get(row, "token")?),
        confirmed: get(row, "confirmed")?,
        tombstone: get(row, "tombstone")?,
        since: timestamp(row, "lock_timestamp_us")?,
        session,
        data: get(row, "data")?,
        abandoned: get(row, "abandoned")?,
    })
}

fn term_info(row: &Row) -> Result<TermInfo, LockError> {
    let ended = match get::<Option<i64>>(row, "ended_at_us")? {
        Some(_) => Some((
            timestamp(row, "ended_at_us")?,
            get::<Option<String>>(row, "end_reason")?.unwrap_or_default(),
        )),
        None => None,
    };
    let term = term(row)?.ok_or_else(|| unexpected("history", "a term without a token"))?;
    Ok(TermInfo { term, session: get::<Option<uuid::Uuid>>(row, "session")?.map(Into::into), ended })
}
