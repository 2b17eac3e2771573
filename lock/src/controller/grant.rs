//! Requests that change terms of keys that a controller grants to others, batched with those of other tasks. Each is a
//! compare-and-set on the key, its group, its token and the own living session.

use std::collections::HashSet;

use crate::db::batch::Request;
use crate::db::database::{CHUNK, Database};
use crate::db::fence::{self, Passing};
use crate::db::refusal::{changed, refusal};
use crate::db::statement::{Bind, Statement, all_in_order, get, unexpected};
use crate::types::check_text;
use crate::{Changed, GrantId, Holder, Key, LockError, Refusal, SessionId, Token, protocol::PROTOCOL};

const GRANT: Statement = Statement { name: "grant", sql: include_str!("../sql/grant.sql") };
const CONFIRM: Statement = Statement { name: "confirm", sql: include_str!("../sql/confirm.sql") };
const VACATE: Statement = Statement { name: "vacate", sql: include_str!("../sql/vacate.sql") };

/// How many times a batch is tried if new eras begin meanwhile. A second new era would mean two failovers within
/// milliseconds.
const ERA_ATTEMPTS: usize = 3;

/// A change of holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The key.
    pub key: Key,
    /// The group that the key was claimed for. A copy that lacks that claim may have the key for another group.
    pub group: String,
    /// The token that the row must have now.
    pub expected: Token,
    /// The largest token known from elsewhere: the new token will be larger than this one as well.
    pub floor: Token,
    /// The new holder.
    pub holder: Holder,
    /// Identifies this change; repeat it with the same id when the answer was lost.
    pub grant: GrantId,
    /// Kept in the history.
    pub reason: String,
}

/// The answer to a [`Grant`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Granted {
    /// The holder holds the key with this token, by this call or by an earlier one with the same grant id.
    Granted {
        /// The new token.
        token: Token,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// A removal of the holder without a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vacate {
    /// The key.
    pub key: Key,
    /// The token that the row must have now; it stays.
    pub token: Token,
    /// Identifies this change.
    pub grant: GrantId,
    /// Kept in the history.
    pub reason: String,
}

impl Grant {
    /// Refuses what the database could not store. One unfit grant would fail those that go with it.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        check_text("group", &self.group)?;
        check_text("holder's uid", &self.holder.uid)?;
        check_text("holder's namespace", &self.holder.namespace)?;
        check_text("holder's name", &self.holder.name)?;
        check_text("reason", &self.reason)?;
        check_token(self.floor)
    }
}

/// Tokens must never run out; an absurdly large number from a caller would use them up.
pub(crate) fn check_token(token: Token) -> Result<(), LockError> {
    const LARGEST: i64 = i64::MAX / 2;
    if (0..=LARGEST).contains(&token.get()) {
        return Ok(());
    }
    Err(LockError::Invalid { what: "token", problem: format!("{token} is out of range (0 to {LARGEST})") })
}

/// A grant, as batched with those of other tasks.
#[derive(Debug, Clone)]
pub(crate) struct Granting {
    pub(crate) own: SessionId,
    pub(crate) grant: Grant,
}

impl Granting {
    /// Sends it alone. It waits for fenced transactions as the policy says.
    pub(crate) async fn past_fence(&self, database: &Database) -> Result<Granted, LockError> {
        let _place = database.fence.place().await;
        match send(database, self.own, std::slice::from_ref(self), Some(database.passing())).await {
            Err(error) if error.is_out_of_locks() => Ok(Granted::Refused(Refusal::Busy)),
            answers => answers?.pop().ok_or_else(|| unexpected(GRANT.name, "no answer")),
        }
    }
}

impl Request for Granting {
    type Answer = Granted;
    const NAME: &'static str = GRANT.name;
    /// Each needs an entry in the server's lock table until the statement has ended.
    const MOST: usize = 500;

    fn session(&self) -> SessionId {
        self.own
    }

    /// Never waits for fenced transactions. Sends one statement, unless two requests name the same key, or the server's
    /// lock table has no room for all keys.
    async fn send(database: &Database, own: SessionId, requests: &[Self]) -> Result<Vec<Granted>, LockError> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut parts = vec![requests];
        while let Some(part) = parts.pop() {
            // In one statement, both grants of a key would succeed.
            let mut keys = HashSet::new();
            let distinct = part.iter().take_while(|request| keys.insert(&request.grant.key)).count();
            let (part, rest) = part.split_at(distinct);
            if !rest.is_empty() {
                parts.push(rest);
            }
            match send(database, own, part, None).await {
                Err(error) if error.is_out_of_locks() && part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                // Other statements fill the whole lock table.
                Err(error) if error.is_out_of_locks() => answers.push(Granted::Refused(Refusal::Busy)),
                done => answers.extend(done?),
            }
        }
        Ok(answers)
    }
}

/// Sends one statement. It waits for fenced transactions if `passing` is given.
async fn send(
    database: &Database,
    own: SessionId,
    requests: &[Granting],
    passing: Option<Passing>,
) -> Result<Vec<Granted>, LockError> {
    let grants = || requests.iter().map(|request| &request.grant);
    let texts = |text: fn(&Grant) -> &str| grants().map(text).collect::<Vec<_>>();
    let bind = Bind::new()
        .with(own.as_uuid())?
        .with(PROTOCOL.cast_signed())?
        .with(texts(|grant| grant.key.as_str()))?
        .with(grants().map(|grant| grant.expected.get()).collect::<Vec<_>>())?
        .with(grants().map(|grant| grant.floor.get()).collect::<Vec<_>>())?
        .with(texts(|grant| &grant.holder.uid))?
        .with(texts(|grant| &grant.holder.namespace))?
        .with(texts(|grant| &grant.holder.name))?
        .with(grants().map(|grant| grant.grant.as_uuid()).collect::<Vec<_>>())?
        .with(texts(|grant| &grant.reason))?
        .with(passing.map(|passing| passing.patience_ms))?
        .with(passing.and_then(|passing| passing.force_ms))?
        .with(texts(|grant| &grant.group))?;
    for _ in 0..ERA_ATTEMPTS {
        let rows = database.rows(GRANT, bind.clone()).await?;
        let answers = all_in_order(requests.len(), &rows, |row| {
            Ok(match get::<&str>(row, "verdict")? {
                "history" => None,
                "grant" | "granted" => Some(Granted::Granted { token: Token::new(get(row, "token")?) }),
                verdict => {
                    let refusal = refusal(row, verdict)?;
                    Some(Granted::Refused(
                        refusal.ok_or_else(|| unexpected(GRANT.name, "done without a token"))?,
                    ))
                }
            })
        })?;
        if let (Some(_), [request], [row]) = (passing, requests, &rows[..]) {
            fence::report(row, &request.grant.key)?;
        }
        if let Some(answers) = answers.into_iter().collect::<Option<Vec<_>>>() {
            return Ok(answers);
        }
        database.begin_era().await?;
    }
    Err(unexpected(GRANT.name, "the database's history changes again and again"))
}

/// A confirmation, as batched with those of other tasks.
#[derive(Debug)]
pub(crate) struct Confirming {
    pub(crate) own: SessionId,
    pub(crate) key: Key,
    pub(crate) token: Token,
}

impl Request for Confirming {
    type Answer = Changed;
    const NAME: &'static str = CONFIRM.name;
    const MOST: usize = CHUNK;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(database: &Database, own: SessionId, requests: &[Self]) -> Result<Vec<Changed>, LockError> {
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(PROTOCOL.cast_signed())?
            .with(requests.iter().map(|request| request.key.as_str()).collect::<Vec<_>>())?
            .with(requests.iter().map(|request| request.token.get()).collect::<Vec<_>>())?;
        all_in_order(requests.len(), &database.rows(CONFIRM, bind).await?, changed)
    }
}

/// A removal of a holder, as batched with those of other tasks.
#[derive(Debug)]
pub(crate) struct Vacating {
    pub(crate) own: SessionId,
    pub(crate) vacate: Vacate,
}

impl Request for Vacating {
    type Answer = Changed;
    const NAME: &'static str = VACATE.name;
    const MOST: usize = CHUNK;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(database: &Database, own: SessionId, requests: &[Self]) -> Result<Vec<Changed>, LockError> {
        let vacates = || requests.iter().map(|request| &request.vacate);
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(PROTOCOL.cast_signed())?
            .with(vacates().map(|vacate| vacate.key.as_str()).collect::<Vec<_>>())?
            .with(vacates().map(|vacate| vacate.token.get()).collect::<Vec<_>>())?
            .with(vacates().map(|vacate| vacate.grant.as_uuid()).collect::<Vec<_>>())?
            .with(vacates().map(|vacate| vacate.reason.as_str()).collect::<Vec<_>>())?;
        all_in_order(requests.len(), &database.rows(VACATE, bind).await?, changed)
    }
}
