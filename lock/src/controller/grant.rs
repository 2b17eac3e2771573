//! Requests that change terms of keys that a controller grants to others, alone and with those of other tasks. Each is
//! a compare-and-set on the key, its group, its token and the own living session.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::db::batch::Request;
use crate::db::database::{CHUNK, Database, check_distinct};
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

/// Most grants in one statement. Each needs an entry in the server's lock table until the statement has ended.
const GRANT_CHUNK: usize = 500;

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

impl Database {
    /// Changes holders, and never waits for fenced transactions.
    pub(crate) async fn try_grant(
        &self,
        own: SessionId,
        grants: &[Grant],
    ) -> Result<Vec<Granted>, LockError> {
        let answers = self.grant_at_once(own, grants).await?;
        self.count(&answers);
        Ok(answers)
    }

    pub(crate) async fn grant_at_once(
        &self,
        own: SessionId,
        grants: &[Grant],
    ) -> Result<Vec<Granted>, LockError> {
        check_distinct(grants.iter().map(|grant| &grant.key))?;
        for grant in grants {
            check_text("group", &grant.group)?;
            check_text("holder's uid", &grant.holder.uid)?;
            check_text("holder's namespace", &grant.holder.namespace)?;
            check_text("holder's name", &grant.holder.name)?;
            check_text("reason", &grant.reason)?;
            check_token(grant.floor)?;
        }
        let chunks: Vec<_> =
            grants.chunks(GRANT_CHUNK).map(|chunk| self.grant_in_parts(own, chunk)).collect();
        stream::iter(chunks).buffered(self.chunks_at_once()).try_concat().await
    }

    /// Sends one statement, or halves if the server's lock table has no room for all keys.
    async fn grant_in_parts(&self, own: SessionId, grants: &[Grant]) -> Result<Vec<Granted>, LockError> {
        let mut answers = Vec::with_capacity(grants.len());
        let mut parts = vec![grants];
        while let Some(part) = parts.pop() {
            match self.grant_chunk(own, part, None).await {
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

    /// Sends one grant, which waits for fenced transactions as the policy says.
    pub(crate) async fn grant_past_fence(&self, own: SessionId, grant: &Grant) -> Result<Granted, LockError> {
        let _place = self.fence.place().await;
        match self.grant_chunk(own, std::slice::from_ref(grant), Some(self.passing())).await {
            Err(error) if error.is_out_of_locks() => Ok(Granted::Refused(Refusal::Busy)),
            answers => answers?.pop().ok_or_else(|| unexpected(GRANT.name, "no answer")),
        }
    }

    /// Sends one statement. It waits for fenced transactions if `passing` is given.
    async fn grant_chunk(
        &self,
        own: SessionId,
        grants: &[Grant],
        passing: Option<Passing>,
    ) -> Result<Vec<Granted>, LockError> {
        let texts = |text: fn(&Grant) -> &str| grants.iter().map(text).collect::<Vec<_>>();
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(PROTOCOL.cast_signed())?
            .with(texts(|grant| grant.key.as_str()))?
            .with(grants.iter().map(|grant| grant.expected.get()).collect::<Vec<_>>())?
            .with(grants.iter().map(|grant| grant.floor.get()).collect::<Vec<_>>())?
            .with(texts(|grant| &grant.holder.uid))?
            .with(texts(|grant| &grant.holder.namespace))?
            .with(texts(|grant| &grant.holder.name))?
            .with(grants.iter().map(|grant| grant.grant.as_uuid()).collect::<Vec<_>>())?
            .with(texts(|grant| &grant.reason))?
            .with(passing.map(|passing| passing.patience_ms))?
            .with(passing.and_then(|passing| passing.force_ms))?
            .with(texts(|grant| &grant.group))?;
        for _ in 0..ERA_ATTEMPTS {
            let rows = self.rows(GRANT, bind.clone()).await?;
            let answers = all_in_order(grants.len(), &rows, |row| {
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
            if let (Some(_), [grant], [row]) = (passing, grants, &rows[..]) {
                fence::report(row, &grant.key)?;
            }
            if let Some(answers) = answers.into_iter().collect::<Option<Vec<_>>>() {
                return Ok(answers);
            }
            self.begin_era().await?;
        }
        Err(unexpected(GRANT.name, "the database's history changes again and again"))
    }

    /// Counts the answers.
    pub(crate) fn count(&self, answers: &[Granted]) {
        let count = |kind: fn(&Granted) -> bool| answers.iter().filter(|granted| kind(granted)).count();
        let won = count(|granted| matches!(granted, Granted::Granted { .. }));
        let contended =
            count(|granted| matches!(granted, Granted::Refused(Refusal::Busy | Refusal::TokenChanged)));
        self.counters.granted(answers.len(), won, contended);
    }

    pub(crate) async fn confirm(
        &self,
        own: SessionId,
        terms: &[(Key, Token)],
    ) -> Result<Vec<Changed>, LockError> {
        check_distinct(terms.iter().map(|(key, _)| key))?;
        let mut all = Vec::with_capacity(terms.len());
        for chunk in terms.chunks(CHUNK) {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(PROTOCOL.cast_signed())?
                .with(chunk.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|(_, token)| token.get()).collect::<Vec<_>>())?;
            all.extend(all_in_order(chunk.len(), &self.rows(CONFIRM, bind).await?, changed)?);
        }
        Ok(all)
    }

    pub(crate) async fn vacate(&self, own: SessionId, vacates: &[Vacate]) -> Result<Vec<Changed>, LockError> {
        check_distinct(vacates.iter().map(|vacate| &vacate.key))?;
        for vacate in vacates {
            check_text("reason", &vacate.reason)?;
        }
        let mut all = Vec::with_capacity(vacates.len());
        for chunk in vacates.chunks(CHUNK) {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(PROTOCOL.cast_signed())?
                .with(chunk.iter().map(|vacate| vacate.key.as_str()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|vacate| vacate.token.get()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|vacate| vacate.grant.as_uuid()).collect::<Vec<_>>())?
                .with(chunk.iter().map(|vacate| vacate.reason.as_str()).collect::<Vec<_>>())?;
            all.extend(all_in_order(chunk.len(), &self.rows(VACATE, bind).await?, changed)?);
        }
        Ok(all)
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
#[derive(Debug)]
pub(crate) struct Granting {
    pub(crate) own: SessionId,
    pub(crate) grant: Grant,
}

impl Request for Granting {
    type Answer = Granted;
    const NAME: &'static str = GRANT.name;
    const MOST: usize = GRANT_CHUNK;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(database: &Database, own: SessionId, requests: &[Self]) -> Result<Vec<Granted>, LockError> {
        let grants: Vec<_> = requests.iter().map(|request| request.grant.clone()).collect();
        database.try_grant(own, &grants).await
    }
}

/// A confirmation, as batched with those of other tasks.
#[derive(Debug)]
pub(crate) struct Confirming {
    pub(crate) own: SessionId,
    pub(crate) term: (Key, Token),
}

impl Request for Confirming {
    type Answer = Changed;
    const NAME: &'static str = CONFIRM.name;
    const MOST: usize = CHUNK;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(database: &Database, own: SessionId, requests: &[Self]) -> Result<Vec<Changed>, LockError> {
        let terms: Vec<_> = requests.iter().map(|request| request.term.clone()).collect();
        database.confirm(own, &terms).await
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
        let vacates: Vec<_> = requests.iter().map(|request| request.vacate.clone()).collect();
        database.vacate(own, &vacates).await
    }
}
