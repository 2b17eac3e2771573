//! Requests for keys that a program holds directly: to acquire them and to release them, with those of other tasks. The
//! statements are functions in the database (`migrations/0005_acquire.sql`, `0006_release.sql`), which programs in any
//! language can call.

use std::time::Duration;

use serde::Serialize;

use crate::db::batch::Request;
use crate::db::database::Database;
use crate::db::refusal::refusal;
use crate::db::statement::{Bind, Row, Statement, get, in_order, unexpected};
use crate::{Changed, GrantId, Holder, Key, LockError, Refusal, SessionId, Token, protocol::EraId};

const ACQUIRE: Statement = Statement {
    name: "acquire",
    sql: "select a.*, null::uuid as session from leadergroup.acquire($1, $2::jsonb, $3, $4) as a",
};
const RELEASE: Statement = Statement {
    name: "release",
    sql: "select r.*, null::uuid as session from leadergroup.release($1, $2::jsonb) as r",
};
/// Most requests in one statement: each may need an entry in the server's lock table.
const MOST: usize = 100;

/// A request for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest {
    /// The key.
    pub key: Key,
    /// The holder, if it is granted.
    pub holder: Holder,
    /// Identifies this request. Repeat it with the same id while waiting, and when an answer was lost.
    pub grant: GrantId,
    /// Kept in the history.
    pub reason: String,
    /// For how long no one gets the key if this holder's session is marked dead while it holds the key: effects of work
    /// that was under way may come late. Zero for none. A release, and an end in order, hand over at once.
    pub lock_delay: Duration,
    /// The token of the term whose delay the caller has waited out; see [`Acquired::Delayed`].
    pub sat_out: Option<Token>,
    /// Once the session has sent more heartbeats than this, the request has no effect (see
    /// [`Beat::count`](crate::protocol::Beat::count)). So the caller can tell when a statement that it gave up can no
    /// longer take effect.
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

/// Whether a request queues up for a key that cannot be granted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A try: waits for nothing but fenced transactions of the key's last holder.
    No,
    /// First come, first served. Repeat the request to see whether it has been granted; [give it
    /// up](crate::Store::give_up) when it is no longer wanted.
    InQueue,
}

/// The answer to an [`AcquireRequest`], with details in case it was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The outcome of the request.
    pub outcome: Acquired,
    /// The session of the present holder.
    pub holder: Option<HolderSession>,
    /// For [`Refusal::Busy`]: the processes in the way, in words, if known.
    pub blockers: Option<String>,
    /// The era of the answer. If it is not the era of the session's last heartbeat, another server answered, and a
    /// grant does not count.
    pub era: Option<EraId>,
}

/// The outcome of an [`AcquireRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The holder holds the key with this token, granted by this call, by an earlier one, or by the previous holder's
    /// release.
    Granted {
        /// The token of the term.
        token: Token,
    },
    /// Another holder has the key, or others wait for it.
    Held,
    /// The request is in the queue.
    Waiting,
    /// [`MOST_WAITERS`](crate::protocol::MOST_WAITERS) requests wait already.
    QueueFull,
    /// The last holder's session was marked dead, and it had asked for a delay. The request is in the queue if it asked
    /// to wait. A caller that has measured `delay` on a monotonic clock, from the receipt of its *first* such answer
    /// for this token, may ask with [`AcquireRequest::sat_out`].
    Delayed {
        /// The token of the term that ended this way.
        token: Token,
        /// How long to wait.
        delay: Duration,
    },
    /// Another program may hold the key by a grant that the database has lost; see
    /// [`Quarantine`](crate::protocol::Quarantine). The request is in the queue if it asked to wait.
    Quarantine,
    /// Nothing was changed.
    Refused(Refusal),
}

/// The session of a key's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderSession {
    /// Its id.
    pub session: SessionId,
    /// Its ttl.
    pub ttl: Duration,
    /// How long its heartbeat has been silent, by the database's clock: a reason to watch it, not a proof.
    pub silent: Duration,
}

impl HolderSession {
    /// Whether the session has been silent for so long that it is probably dead.
    pub(crate) fn is_suspect(&self) -> bool {
        self.silent >= self.ttl * 2
    }
}

/// The waiter that a key is transferred to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Successor<'a> {
    /// The waiter with this [`Holder::uid`].
    Uid(&'a str),
    /// The first waiter with this [`Holder::name`].
    Name(&'a str),
}

/// The answer to [`Store::transfer`](crate::Store::transfer).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transfer {
    /// The successor holds the key.
    Done,
    /// No living waiter matches; nothing was changed.
    NotWaiting,
    /// Nothing was changed.
    Refused(Refusal),
}

/// The request to wake, and its session.
pub(crate) fn next(row: &Row) -> Result<Option<(SessionId, GrantId)>, LockError> {
    let session = get::<Option<uuid::Uuid>>(row, "next_session")?;
    let grant = get::<Option<uuid::Uuid>>(row, "next_grant")?;
    Ok(session.zip(grant).map(|(session, grant)| (session.into(), grant.into())))
}

/// A request to acquire a key, as batched with others.
#[derive(Debug, Clone)]
pub(crate) struct Acquiring {
    pub(crate) own: SessionId,
    pub(crate) request: AcquireRequest,
    pub(crate) wait: Wait,
}

/// The form that `leadergroup.acquire` reads.
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
}

/// `None` if the request must be made alone.
impl Request for Acquiring {
    type Answer = Option<Attempt>;

    const NAME: &'static str = ACQUIRE.name;
    const MOST: usize = MOST;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(
        database: &Database,
        own: SessionId,
        requests: &[Self],
    ) -> Result<Vec<Self::Answer>, LockError> {
        let passing = database.passing();
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(json(&requests.iter().map(Self::json).collect::<Vec<_>>())?)?
            .with(passing.patience_ms)?
            .with(passing.force_ms)?;
        match database.rows(ACQUIRE, bind).await {
            // One by one, they may fit into the lock table.
            Err(error) if error.is_out_of_locks() && requests.len() > 1 => Ok(vec![None; requests.len()]),
            rows => in_order(requests.len(), &rows?, attempt),
        }
    }
}

fn attempt(row: &Row) -> Result<Attempt, LockError> {
    let token = || get(row, "token").map(Token::new);
    // The time since a heartbeat is negative after the database's clock was put back.
    let millis = |column| get::<i64>(row, column).map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
    let outcome = match get::<&str>(row, "verdict")? {
        "granted" => Acquired::Granted { token: token()? },
        "held" => Acquired::Held,
        "waiting" => Acquired::Waiting,
        "full" => Acquired::QueueFull,
        "delayed" => Acquired::Delayed { token: token()?, delay: millis("delay_ms")? },
        "quarantine" => Acquired::Quarantine,
        "void" => {
            // The request took so long that it was void when it arrived.
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

/// A request to release a key, as batched with others.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Releasing {
    #[serde(skip)]
    pub(crate) own: SessionId,
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) reason: String,
}

/// The outcome of a release.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) answer: Changed,
    pub(crate) next: Option<(SessionId, GrantId)>,
}

/// `None` if the request must be made alone.
impl Request for Releasing {
    type Answer = Option<Ended>;

    const NAME: &'static str = RELEASE.name;
    const MOST: usize = MOST;

    fn session(&self) -> SessionId {
        self.own
    }

    async fn send(
        database: &Database,
        own: SessionId,
        requests: &[Self],
    ) -> Result<Vec<Self::Answer>, LockError> {
        let bind = Bind::new().with(own.as_uuid())?.with(json(&requests)?)?;
        in_order(requests.len(), &database.rows(RELEASE, bind).await?, |row| {
            Ok(Ended { answer: crate::db::refusal::changed(row)?, next: next(row)? })
        })
    }
}

/// Makes a request without others.
pub(crate) async fn alone<R, A>(database: &Database, request: R) -> Result<A, LockError>
where
    R: Request<Answer = Option<A>>,
{
    let answers = R::send(database, request.session(), std::slice::from_ref(&request)).await?;
    answers.into_iter().next().flatten().ok_or_else(|| unexpected(R::NAME, "no rows"))
}

fn json(value: &impl Serialize) -> Result<String, LockError> {
    serde_json::to_string(value)
        .map_err(|error| LockError::Invalid { what: "request", problem: error.to_string() })
}
