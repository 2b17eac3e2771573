//! Looking at locks, and the one thing that a person may do to them: taking a key away from its holder.

use jiff::Timestamp;
use sqlx::postgres::PgRow;

use super::hold::LetGo;
use super::pool::Statement;
use super::read::{term, timestamp};
use super::store::{Bind, get, unexpected};
use super::verdict::changed;
use super::{Changed, GrantId, Key, LockError, Owner, PROTOCOL, Refusal, SessionId, Store, Term, Token};

const INFO: Statement =
    Statement { name: "show", sql: concat!(include_str!("sql/info.sql"), "where l.key = $1") };
const LIST: Statement = Statement {
    name: "list",
    sql: concat!(
        include_str!("sql/info.sql"),
        "where l.key > $1 and starts_with(l.key, $2) order by l.key limit $3"
    ),
};
const HISTORY: Statement = Statement { name: "history", sql: include_str!("sql/history.sql") };
const FORCE_RELEASE: Statement =
    Statement { name: "forced release", sql: include_str!("sql/force_release.sql") };

const WAITERS: Statement = Statement { name: "list waiters", sql: include_str!("sql/waiters.sql") };
const CENSUS: Statement = Statement { name: "census", sql: include_str!("sql/census.sql") };

/// Most rows in one answer of [`Store::list`], [`Store::waiters`] and [`Store::history`].
pub const LONGEST_LIST: u32 = 1_000;

/// A lock as people want to see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// The key.
    pub key: Key,
    /// The group that uses it.
    pub group: String,
    /// Who holds it, if anybody.
    pub owner: Option<Owner>,
    /// The largest token ever granted for the key.
    pub token: Token,
    /// Whether the promotion of the holder was seen through.
    pub confirmed: bool,
    /// The group was deleted; the row only keeps the token.
    pub tombstone: bool,
    /// Known to be used with `leadergroup.fence`.
    pub fenced: bool,
    /// When the holder last changed, by the database's clock.
    pub since: Timestamp,
    /// The session in charge, if there is one.
    pub charge: Option<ChargeInfo>,
}

/// The session in charge of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeInfo {
    /// Its id.
    pub session: SessionId,
    /// What it calls itself.
    pub name: String,
    /// It was marked dead or closed. One that is not may have ended all the same; whoever watches it finds out.
    pub dead: bool,
    /// Its last heartbeat, by the database's clock.
    pub seen: Timestamp,
}

/// A term in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermInfo {
    /// Token, owner, reason, beginning.
    pub term: Term,
    /// The session that granted it.
    pub session: SessionId,
    /// When and why it was ended; `None` while it lasts, and where only the next term ended it.
    pub ended: Option<(Timestamp, String)>,
}

/// One that waits for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterInfo {
    /// Who is to hold the key.
    pub owner: Owner,
    /// The session that waits.
    pub session: SessionId,
    /// Since when, by the database's clock.
    pub since: Timestamp,
    /// What for.
    pub reason: String,
}

/// How many there are of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Sessions that nobody has marked dead, and that have not ended.
    pub living_sessions: u64,
    /// Locks, free ones included, but not those of deleted groups.
    pub locks: u64,
    /// Those with a holder.
    pub held: u64,
    /// Places in queues.
    pub waiting: u64,
}

impl Store {
    /// Who waits for a key, the next one first; at most `limit` and at most [`LONGEST_LIST`].
    pub async fn waiters(&self, key: &Key, limit: u32) -> Result<Vec<WaiterInfo>, LockError> {
        let bind = Bind::new().with(key.as_str())?.with(i64::from(limit.min(LONGEST_LIST)))?;
        let waiter = |row: &PgRow| {
            Ok(WaiterInfo {
                owner: Owner {
                    uid: get(row, "owner_uid")?,
                    namespace: get(row, "owner_namespace")?,
                    name: get(row, "owner_name")?,
                },
                session: get::<uuid::Uuid>(row, "session")?.into(),
                since: timestamp(row, "asked_at_us")?,
                reason: get(row, "reason")?,
            })
        };
        self.rows(WAITERS, bind).await?.iter().map(waiter).collect()
    }

    /// Counts everything. Reads whole tables: for people, not for loops.
    pub async fn census(&self) -> Result<Census, LockError> {
        let rows = self.rows(CENSUS, Bind::new()).await?;
        let row = rows.first().ok_or_else(|| unexpected("census", "no rows"))?;
        let number = |column| get::<i64>(row, column).map(i64::unsigned_abs);
        Ok(Census {
            living_sessions: number("living_sessions")?,
            locks: number("locks")?,
            held: number("held")?,
            waiting: number("waiting")?,
        })
    }

    /// The locks whose keys begin with `prefix`, in the order of their keys, from the one behind `after` on; at most
    /// `limit` and at most [`LONGEST_LIST`].
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Vec<LockInfo>, LockError> {
        let after = after.map_or("", Key::as_str);
        let bind = Bind::new().with(after)?.with(prefix)?.with(i64::from(limit.min(LONGEST_LIST)))?;
        self.rows(LIST, bind).await?.iter().map(lock_info).collect()
    }

    /// One lock, if there is a row for the key.
    pub async fn info(&self, key: &Key) -> Result<Option<LockInfo>, LockError> {
        let rows = self.rows(INFO, Bind::new().with(key.as_str())?).await?;
        rows.first().map(lock_info).transpose()
    }

    /// The terms of a key, the latest first; at most `limit` and at most [`LONGEST_LIST`]. Older ones may have been
    /// [pruned](Store::prune).
    pub async fn history(&self, key: &Key, limit: u32) -> Result<Vec<TermInfo>, LockError> {
        let bind = Bind::new().with(key.as_str())?.with(i64::from(limit.min(LONGEST_LIST)))?;
        self.rows(HISTORY, bind).await?.iter().map(term_info).collect()
    }

    /// Takes a key away from its holder, whoever is in charge of it, and the history keeps the reason, which had better name
    /// who did it. Done only if the token still is `token`. What the old holder still does is refused where a fence is in
    /// place.
    ///
    /// A lock that a program held goes to the first living waiter at once, who is woken; no delay that the old holder had
    /// asked for is kept. The old holder is sent word, so that its guard is [lost](super::Guard::lost) as soon as it hears
    /// of it, which is *after* somebody else may have begun. For a group of the operator the holder and the charge go, and
    /// the token stays.
    pub async fn force_release(&self, key: &Key, token: Token, reason: &str) -> Result<Changed, LockError> {
        match self.let_go(None, key, token, reason, None, false).await? {
            LetGo::Refused(Refusal::Foreign { .. }) => {}
            LetGo::Refused(refusal) => return Ok(Changed::Refused(refusal)),
            LetGo::Done | LetGo::Free => return Ok(Changed::Done),
            LetGo::NoHeir => return Err(unexpected("forced release", "an heir is missing")),
        }
        let bind = Bind::new()
            .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
            .with(key.as_str())?
            .with(token.get())?
            .with(GrantId::new().as_uuid())?
            .with(reason)?;
        let rows = self.rows(FORCE_RELEASE, bind).await?;
        let row = rows.first().ok_or_else(|| unexpected("forced release", "no rows"))?;
        let mut answer = changed(row)?;
        match &mut answer {
            Changed::Done => self.notify("").await,
            Changed::Refused(Refusal::TokenChanged { row }) => {
                *row = self.read(std::slice::from_ref(key)).await?.pop().map(Box::new);
            }
            Changed::Refused(_) => {}
        }
        Ok(answer)
    }
}

fn lock_info(row: &PgRow) -> Result<LockInfo, LockError> {
    let owner = match get::<Option<String>>(row, "owner_uid")? {
        Some(uid) => {
            Some(Owner { uid, namespace: get(row, "owner_namespace")?, name: get(row, "owner_name")? })
        }
        None => None,
    };
    let charge = match get::<Option<uuid::Uuid>>(row, "session")? {
        Some(session) => Some(ChargeInfo {
            session: session.into(),
            name: get(row, "session_name")?,
            dead: get(row, "session_dead")?,
            seen: timestamp(row, "session_seen_us")?,
        }),
        None => None,
    };
    Ok(LockInfo {
        key: Key::stored(get(row, "key")?),
        group: get(row, "group_id")?,
        owner,
        token: Token::new(get(row, "token")?),
        confirmed: get(row, "confirmed")?,
        tombstone: get(row, "tombstone")?,
        fenced: get(row, "fenced")?,
        since: timestamp(row, "lock_timestamp_us")?,
        charge,
    })
}

fn term_info(row: &PgRow) -> Result<TermInfo, LockError> {
    let ended = match get::<Option<i64>>(row, "ended_at_us")? {
        Some(_) => Some((
            timestamp(row, "ended_at_us")?,
            get::<Option<String>>(row, "end_reason")?.unwrap_or_default(),
        )),
        None => None,
    };
    let term = term(row)?.ok_or_else(|| unexpected("history", "a term without a token"))?;
    Ok(TermInfo { term, session: get::<uuid::Uuid>(row, "session")?.into(), ended })
}
