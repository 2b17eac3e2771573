//! Keys that a program holds for itself: acquired, released, transferred. The statements behind it are functions in the
//! database (`migrations/0005_acquire.sql`, `0006_release.sql`), which any language can call.

use std::time::Duration;

use serde::Serialize;
use sqlx::postgres::PgRow;

use crate::batch::Request;
use crate::pool::Statement;
use crate::refusal::refusal;
use crate::store::{Bind, get, in_order, unexpected};
use crate::types::check_text;
use crate::{Changed, EraId, GrantId, Holder, Key, LockError, Refusal, SessionId, Store, Token};

const ACQUIRE: Statement = Statement {
    name: "acquire",
    sql: "select a.*, null::uuid as session from leadergroup.acquire($1, $2::jsonb, $3, $4) as a",
};
const RELEASE: Statement = Statement {
    name: "release",
    sql: "select r.*, null::uuid as session from leadergroup.release($1, $2::jsonb) as r",
};
const END_HOLD: Statement = Statement {
    name: "transfer",
    sql: "select e.*, null::uuid as session from leadergroup.end_hold($1, $2, $3, $4, $5, $6) as e",
};
const GIVE_UP: Statement =
    Statement { name: "give up", sql: "select * from leadergroup.give_up($1, $2, $3)" };

/// Most requests in one statement: each may take a lock from the server's table of locks.
const MOST: usize = 100;

/// Most living waiters for one key.
pub const MOST_WAITERS: u32 = 10_000;

/// What a program wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest {
    /// The key.
    pub key: Key,
    /// Who is to hold it.
    pub holder: Holder,
    /// Names this request. Repeat it with the same id while waiting, and when an answer was lost.
    pub grant: GrantId,
    /// Kept in the history.
    pub reason: String,
    /// How long no other holder gets the key if this holder's session is marked dead while it holds the key, because
    /// unfinished work may have late effects. Zero for no delay. A release or a clean end hands over at once.
    pub lock_delay: Duration,
    /// The token of the term whose delay the caller has sat out; see [`Acquired::Delayed`].
    pub sat_out: Option<Token>,
    /// Once the session has sent more heartbeats than this, the request has no effect any more
    /// ([`Beat`](crate::Beat)'s `count`). So a caller can tell when a statement that it has given up can no longer
    /// take effect.
    pub void_after: Option<u64>,
}

impl AcquireRequest {
    /// A new request without a delay.
    pub fn new(key: Key, holder: Holder, reason: impl Into<String>) -> Self {
        Self {
            key,
            holder,
            grant: GrantId::new(),
            reason: reason.into(),
            lock_delay: Duration::ZERO,
            sat_out: None,
            void_after: None,
        }
    }
}

/// Whether a request queues for a key that is not available at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A try. It waits only for fenced transactions of the key's last holder.
    No,
    /// First come, first served. Repeat the request to see whether it is its turn; [give it up](Store::give_up) when it is
    /// not wanted any more.
    InQueue,
}

/// The answer to an [`AcquireRequest`], with what is worth knowing where it was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What became of it.
    pub outcome: Acquired,
    /// The session of the present holder.
    pub holder: Option<HolderSession>,
    /// Who is in the way of [`Refusal::Busy`], in words, if it is known.
    pub blockers: Option<String>,
    /// The era that the answer is from. A grant of another era than that of the session's last heartbeat came from another
    /// server, and is worth nothing.
    pub era: Option<EraId>,
}

/// What became of an [`AcquireRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The holder holds the key with this token, by this call, an earlier one, or because it was handed over.
    Granted {
        /// The token of the term.
        token: Token,
    },
    /// Another client holds the key, or waits for it.
    Held,
    /// In the queue.
    Waiting,
    /// [`MOST_WAITERS`] wait already.
    QueueFull,
    /// The last holder's session was marked dead, and it had asked for a delay: in the queue, or not, as asked for. A caller
    /// that has counted `delay` on a monotonic clock, from the receipt of its *first* such answer for this token on, may
    /// ask with [`AcquireRequest::sat_out`].
    Delayed {
        /// The token of the term that ended so.
        token: Token,
        /// How long to let pass.
        delay: Duration,
    },
    /// A client may hold the key by a grant that the database has lost; see [`Quarantine`](crate::Quarantine). The
    /// request is in the queue if it asked for that.
    Quarantine,
    /// Nothing was changed.
    Refused(Refusal),
}

/// The session of a key's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderSession {
    /// Its id.
    pub session: SessionId,
    /// Its ttl.
    pub ttl: Duration,
    /// Since when its heartbeat has been silent, by the database's clock: a hint to watch it, no proof.
    pub silent: Duration,
}

impl HolderSession {
    /// Whether the session has been silent for so long that it probably is dead.
    pub(crate) fn is_suspect(&self) -> bool {
        self.silent >= self.ttl * 2
    }
}

/// To whom a key is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Successor<'a> {
    /// The waiter with this [`Holder::uid`].
    Uid(&'a str),
    /// The first waiter with this [`Holder::name`].
    Name(&'a str),
}

/// The answer to [`Store::transfer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transfer {
    /// The successor holds the key.
    Done,
    /// No living waiter fits the description; nothing was changed.
    NotWaiting,
    /// Nothing was changed.
    Refused(Refusal),
}

impl Store {
    /// Acquires the key, if it can, or queues up for it.
    ///
    /// Never waits for another holder, nor for one that is about to become it: then the answer is [`Refusal::Busy`]. That
    /// one may be the same request's first try, whose answer was lost on the way: repeat it until there is another answer,
    /// or [give it up](Self::give_up). Only fenced transactions of the last holder are waited for, as the
    /// [`FencePolicy`](crate::FencePolicy) says.
    pub async fn acquire(
        &self,
        own: SessionId,
        request: &AcquireRequest,
        wait: Wait,
    ) -> Result<Attempt, LockError> {
        check_text("holder's uid", &request.holder.uid)?;
        check_text("holder's namespace", &request.holder.namespace)?;
        check_text("holder's name", &request.holder.name)?;
        check_text("reason", &request.reason)?;
        if i64::try_from(request.lock_delay.as_millis()).is_err() {
            return Err(LockError::Invalid { what: "lock delay", problem: "is too long".to_owned() });
        }
        let acquiring = Acquiring { own, request: request.clone(), wait };
        let repeats = self.pool.repeats();
        let mut attempt = match self.batches.acquire.ask(self, acquiring.clone()).await? {
            Some(attempt) => attempt,
            // Among others it could not be answered: something has to be waited for.
            None => acquiring.clone().alone(self).await?,
        };
        if attempt.outcome == Acquired::Quarantine && attempt.era.is_none() {
            // The first to notice a new history.
            self.begin_era().await?;
            attempt = acquiring.alone(self).await?;
        }
        if attempt.outcome == Acquired::Refused(Refusal::Busy) && self.pool.repeats() != repeats {
            let detail = "the connection broke, and what was asked on it may still be under way".to_owned();
            return Err(LockError::Interrupted { statement: ACQUIRE.name, detail });
        }
        if !matches!(attempt.outcome, Acquired::Granted { .. }) {
            self.counters.contended();
        }
        Ok(attempt)
    }

    /// Gives the key up; the first living waiter holds it at once, and is woken (after a failover only once the
    /// [quarantine](crate::Quarantine) is over; while a fenced transaction of this term is under way, once that has ended).
    /// Only in the term with this token: after the key went to somebody else the answer is [`Refusal::TokenChanged`]. May
    /// be repeated with the same reason.
    pub async fn release(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        reason: &str,
    ) -> Result<Changed, LockError> {
        check_text("reason", reason)?;
        let releasing = Releasing { own, key: key.clone(), token, reason: reason.to_owned() };
        let ended = match self.batches.release.ask(self, releasing.clone()).await? {
            Some(ended) => ended,
            None => releasing.alone(self).await?,
        };
        if let Some((session, grant)) = ended.next {
            self.wake(session, grant).await;
        }
        Ok(ended.answer)
    }

    /// Gives the key to one that waits for it, ahead of the queue; the others keep their places. Otherwise as
    /// [`release`](Self::release), except that nothing is changed unless the answer is [`Transfer::Done`]. While a fenced
    /// transaction of the present term is under way, or in quarantine, the answer is [`Refusal::Busy`].
    pub async fn transfer(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        successor: Successor<'_>,
        reason: &str,
    ) -> Result<Transfer, LockError> {
        let row = self.end_hold(Some(own), key, token, reason, Some(successor)).await?;
        Ok(match get::<&str>(&row, "verdict")? {
            "no-successor" => Transfer::NotWaiting,
            verdict => match refusal(&row, verdict)? {
                None => Transfer::Done,
                Some(refusal) => {
                    if refusal == Refusal::Busy {
                        // Perhaps the first to notice a new history.
                        self.begin_era().await?;
                    }
                    Transfer::Refused(refusal)
                }
            },
        })
    }

    /// Ends a hold, by force without a session, and wakes who is next.
    pub(crate) async fn end_hold(
        &self,
        own: Option<SessionId>,
        key: &Key,
        token: Token,
        reason: &str,
        successor: Option<Successor<'_>>,
    ) -> Result<PgRow, LockError> {
        check_text("reason", reason)?;
        let (uid, name) = match successor {
            Some(Successor::Uid(uid)) => (Some(uid), None),
            Some(Successor::Name(name)) => (None, Some(name)),
            None => (None, None),
        };
        let bind = Bind::new()
            .with(own.map(SessionId::as_uuid))?
            .with(key.as_str())?
            .with(token.get())?
            .with(reason)?
            .with(uid)?
            .with(name)?;
        let row = self.row(END_HOLD, bind).await?;
        if let Some((session, grant)) = next(&row)? {
            self.wake(session, grant).await;
        }
        Ok(row)
    }

    /// Leaves the queue. If it was the request's turn meanwhile, the key is released again.
    pub async fn give_up(&self, own: SessionId, key: &Key, grant: GrantId) -> Result<(), LockError> {
        let bind = Bind::new().with(own.as_uuid())?.with(key.as_str())?.with(grant.as_uuid())?;
        if let Some((session, grant)) = next(&self.row(GIVE_UP, bind).await?)? {
            self.wake(session, grant).await;
        }
        Ok(())
    }
}

/// Whom to wake.
fn next(row: &PgRow) -> Result<Option<(SessionId, GrantId)>, LockError> {
    let session = get::<Option<uuid::Uuid>>(row, "next_session")?;
    let grant = get::<Option<uuid::Uuid>>(row, "next_grant")?;
    Ok(session.zip(grant).map(|(session, grant)| (session.into(), grant.into())))
}

/// A request to acquire a key, on its way.
#[derive(Debug, Clone)]
pub(crate) struct Acquiring {
    own: SessionId,
    request: AcquireRequest,
    wait: Wait,
}

/// As `leadergroup.acquire` reads it.
#[derive(Serialize)]
struct AcquiringJson<'a> {
    key: &'a str,
    grant_id: GrantId,
    uid: &'a str,
    namespace: &'a str,
    name: &'a str,
    reason: &'a str,
    wait: bool,
    delay_ms: u128,
    sat_out: Option<Token>,
    void_after: Option<u64>,
}

impl Acquiring {
    fn json(&self) -> AcquiringJson<'_> {
        let AcquireRequest { key, holder, grant, reason, lock_delay, sat_out, void_after } = &self.request;
        AcquiringJson {
            key: key.as_str(),
            grant_id: *grant,
            uid: &holder.uid,
            namespace: &holder.namespace,
            name: &holder.name,
            reason,
            wait: self.wait == Wait::InQueue,
            delay_ms: lock_delay.as_millis(),
            sat_out: *sat_out,
            void_after: *void_after,
        }
    }

    async fn alone(self, store: &Store) -> Result<Attempt, LockError> {
        let answers = Self::send(store, self.own, std::slice::from_ref(&self)).await?;
        answers.into_iter().next().flatten().ok_or_else(|| unexpected(ACQUIRE.name, "no rows"))
    }
}

/// `None` if the request is to be made alone.
impl Request for Acquiring {
    type Answer = Option<Attempt>;

    const NAME: &'static str = ACQUIRE.name;
    const MOST: usize = MOST;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(store: &Store, own: SessionId, requests: &[Self]) -> Result<Vec<Self::Answer>, LockError> {
        let passing = store.passing();
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(json(&requests.iter().map(Self::json).collect::<Vec<_>>())?)?
            .with(passing.patience_ms)?
            .with(passing.force_ms)?;
        match store.rows(ACQUIRE, bind).await {
            // There may be room for them one by one.
            Err(error) if error.is_out_of_locks() && requests.len() > 1 => Ok(vec![None; requests.len()]),
            rows => in_order(requests.len(), &rows?, attempt),
        }
    }
}

fn attempt(row: &PgRow) -> Result<Attempt, LockError> {
    let token = || get(row, "token").map(Token::new);
    let millis = |column| get::<i64>(row, column).map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let outcome = match get::<&str>(row, "verdict")? {
        "granted" => Acquired::Granted { token: token()? },
        "held" => Acquired::Held,
        "waiting" => Acquired::Waiting,
        "full" => Acquired::QueueFull,
        "delayed" => Acquired::Delayed { token: token()?, delay: millis("delay_ms")? },
        "quarantine" => Acquired::Quarantine,
        "void" => {
            // It was on its way for so long that it has no effect.
            return Err(LockError::Timeout { statement: ACQUIRE.name, after: Duration::ZERO });
        }
        verdict => Acquired::Refused(
            refusal(row, verdict)?.ok_or_else(|| unexpected(ACQUIRE.name, "done without a token"))?,
        ),
    };
    let holder = match get::<Option<uuid::Uuid>>(row, "holder_session")? {
        Some(session) if get::<Option<i64>>(row, "holder_silent_ms")?.is_some() => Some(HolderSession {
            session: session.into(),
            ttl: millis("holder_ttl_ms")?,
            silent: millis("holder_silent_ms")?,
        }),
        _ => None,
    };
    let era = get::<Option<uuid::Uuid>>(row, "era_id")?.map(EraId::from);
    Ok(Attempt { outcome, holder, blockers: get(row, "blockers")?, era })
}

/// A request to release a key, on its way.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Releasing {
    #[serde(skip)]
    own: SessionId,
    key: Key,
    token: Token,
    reason: String,
}

/// What became of it.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    answer: Changed,
    next: Option<(SessionId, GrantId)>,
}

impl Releasing {
    async fn alone(self, store: &Store) -> Result<Ended, LockError> {
        let answers = Self::send(store, self.own, std::slice::from_ref(&self)).await?;
        answers.into_iter().next().flatten().ok_or_else(|| unexpected(RELEASE.name, "no rows"))
    }
}

/// `None` if the request is to be made alone.
impl Request for Releasing {
    type Answer = Option<Ended>;

    const NAME: &'static str = RELEASE.name;
    const MOST: usize = MOST;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(store: &Store, own: SessionId, requests: &[Self]) -> Result<Vec<Self::Answer>, LockError> {
        let bind = Bind::new().with(own.as_uuid())?.with(json(&requests)?)?;
        in_order(requests.len(), &store.rows(RELEASE, bind).await?, |row| {
            Ok(Ended { answer: crate::refusal::changed(row)?, next: next(row)? })
        })
    }
}

fn json(value: &impl Serialize) -> Result<String, LockError> {
    serde_json::to_string(value)
        .map_err(|error| LockError::Invalid { what: "request", problem: error.to_string() })
}
