//! Locks that a program holds itself: taken at once, waited for in order, and handed straight to the next one.
//!
//! Each operation is one statement and may be repeated without harm. The functions behind them lock the row before they
//! read who waits (`migrations/0003_waiters.sql`), so that nobody is overlooked. A session that dies loses what it holds
//! as soon as others have [marked it dead](Store::mark_dead), and its place among those that wait.

use std::time::Duration;

use super::model::check_text;
use super::pool::Statement;
use super::store::{Bind, get, unexpected};
use super::verdict::refusal;
use super::{
    Changed, GrantId, Key, LockError, Owner, PROTOCOL, Refusal, SessionId, Store, TOKEN_JUMP, Token,
};

const ACQUIRE: Statement = Statement {
    name: "acquire",
    sql: "select a.verdict, a.token, a.delay_ms, null::uuid as session, null::text as group_id, null::integer as protocol \
          from leadergroup.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) as a",
};
const RELEASE: Statement = Statement {
    name: "release",
    sql: "select r.verdict, r.next_request, r.old_request, null::uuid as session, r.found_group as group_id, $2 as protocol \
          from leadergroup.release($1, $2, $3, $4, $5, $6, $7, $8, $9) as r",
};
const GIVE_UP: Statement =
    Statement { name: "give up waiting", sql: "select leadergroup.give_up($1, $2, $3) as token" };
const OWN_REQUESTS: Statement =
    Statement { name: "look for what is left", sql: include_str!("sql/own_requests.sql") };
/// A word, which need not outlive a crash: its commit does not wait for the disk.
const WAKE: Statement = Statement {
    name: "wake",
    sql: "select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)",
};

/// The group that rows of locks belong to which programs hold themselves. A key of a group of the operator is refused.
pub const HOLD_GROUP: &str = "held by programs";

/// The channel on which waiters are woken, and holders whose key was taken away; the payload is their request.
pub(super) const TURN_CHANNEL: &str = "leadergroup_turn";

/// Most living waiters for one key.
pub const MOST_WAITERS: u32 = 10_000;

/// How often a change of the database's history, or of the row, may come in between.
const ATTEMPTS: usize = 5;

/// A wish to hold a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The key.
    pub key: Key,
    /// Who is to hold it.
    pub owner: Owner,
    /// Names this wish; repeat it with the same id while waiting, and when an answer was lost.
    pub request: GrantId,
    /// Kept in the history.
    pub reason: String,
    /// For how long nobody is to get the key should this holder's session be marked dead while it holds the key: the
    /// others' work may have effects that come late. Zero for none. A release, and an end in order, hand over at once.
    pub lock_delay: Duration,
    /// The token of the term whose delay the asker has sat out, if any; see [`Acquired::Delayed`].
    pub delay_over: Option<Token>,
}

impl Wish {
    /// A new wish, without any delay.
    pub fn new(key: Key, owner: Owner, reason: impl Into<String>) -> Self {
        let (request, reason) = (GrantId::new(), reason.into());
        Self { key, owner, request, reason, lock_delay: Duration::ZERO, delay_over: None }
    }
}

/// The answer to a [`Wish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds the key with this token, by this call, an earlier one, or because it was handed over.
    Granted {
        /// The token of the term.
        token: Token,
    },
    /// Somebody else holds the key, or waits for it, or may hold it by a grant that the database has lost; see
    /// [`Settler`](super::Settler).
    Held,
    /// In the queue.
    Waiting,
    /// [`MOST_WAITERS`] wait already.
    QueueFull,
    /// The last holder's session was marked dead, and it had asked that nobody gets the key for some time after that: in
    /// the queue, or not, as asked for. Whoever counts `delay` on a monotonic clock from the receipt of its *first* such
    /// answer for this token on may then ask with [`Wish::delay_over`].
    Delayed {
        /// The token of the term that ended so.
        token: Token,
        /// How long to let pass.
        delay: Duration,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// To whom a key is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heir<'a> {
    /// The waiter with this [`Owner::uid`].
    Uid(&'a str),
    /// Of the waiters with this [`Owner::name`] the first.
    Name(&'a str),
}

impl<'a> Heir<'a> {
    fn uid(self) -> Option<&'a str> {
        if let Self::Uid(uid) = self { Some(uid) } else { None }
    }

    fn name(self) -> Option<&'a str> {
        if let Self::Name(name) = self { Some(name) } else { None }
    }
}

/// The answer to [`Store::hand_over`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandOver {
    /// The heir holds the key.
    Done,
    /// Nobody alive of that description waits for the key; nothing was changed.
    NotWaiting,
    /// Nothing was changed.
    Refused(Refusal),
}

/// What became of letting a key go.
#[derive(Debug)]
pub(super) enum LetGo {
    Done,
    /// By force only: nobody held it.
    Free,
    NoHeir,
    Refused(Refusal),
}

impl Store {
    /// Takes the key if nobody holds it and nobody waits for it. Never waits for another holder; only transactions of the
    /// last one that are fenced, and still under way, are waited for as the [`FencePolicy`](super::FencePolicy) says.
    pub async fn try_hold(&self, own: SessionId, wish: &Wish) -> Result<Acquired, LockError> {
        self.acquire(own, wish, false).await
    }

    /// As [`try_hold`](Self::try_hold), but queues up if the key is not to be had: the answer is [`Acquired::Waiting`].
    /// Repeat the same wish to see whether it is its turn. The queue is first come, first served. Whoever does not want to
    /// wait any longer has to [say so](Self::give_up).
    pub async fn queue_for(&self, own: SessionId, wish: &Wish) -> Result<Acquired, LockError> {
        self.acquire(own, wish, true).await
    }

    async fn acquire(&self, own: SessionId, wish: &Wish, queue: bool) -> Result<Acquired, LockError> {
        let answer = self.ask(own, wish, queue).await?;
        match answer {
            Acquired::Held
            | Acquired::Waiting
            | Acquired::QueueFull
            | Acquired::Delayed { .. }
            | Acquired::Refused(Refusal::Busy) => self.counters.contended(),
            Acquired::Granted { .. } | Acquired::Refused(_) => {}
        }
        Ok(answer)
    }

    async fn ask(&self, own: SessionId, wish: &Wish, queue: bool) -> Result<Acquired, LockError> {
        check_text("owner's uid", &wish.owner.uid)?;
        check_text("owner's namespace", &wish.owner.namespace)?;
        check_text("owner's name", &wish.owner.name)?;
        check_text("reason", &wish.reason)?;
        let lock_delay_ms = i64::try_from(wish.lock_delay.as_millis())
            .map_err(|_| LockError::Invalid { what: "lock delay", problem: "is too long".to_owned() })?;
        let passing = self.passing();
        for _ in 0..ATTEMPTS {
            let bind = Bind::new()
                .with(own.as_uuid())?
                .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
                .with(TOKEN_JUMP)?
                .with(wish.key.as_str())?
                .with(HOLD_GROUP)?
                .with(wish.request.as_uuid())?
                .with(&wish.owner.uid)?
                .with(&wish.owner.namespace)?
                .with(&wish.owner.name)?
                .with(&wish.reason)?
                .with(lock_delay_ms)?
                .with(wish.delay_over.map(Token::get))?
                .with(queue)?
                .with(i32::try_from(MOST_WAITERS).unwrap_or(i32::MAX))?
                .with(passing.patience_ms)?
                .with(passing.force_ms)?;
            let rows = self.rows(ACQUIRE, bind).await?;
            let row = rows.first().ok_or_else(|| unexpected("acquire", "no rows"))?;
            return Ok(match get::<&str>(row, "verdict")? {
                "granted" => Acquired::Granted { token: Token::new(get(row, "token")?) },
                "held" => Acquired::Held,
                "waiting" => Acquired::Waiting,
                "full" => Acquired::QueueFull,
                "delayed" => Acquired::Delayed {
                    token: Token::new(get(row, "token")?),
                    delay: Duration::from_millis(get::<i64>(row, "delay_ms")?.unsigned_abs()),
                },
                "fenced" => Acquired::Refused(Refusal::Busy),
                "foreign" => {
                    let row = self.info(&wish.key).await?;
                    Acquired::Refused(row.map_or(Refusal::Busy, |row| Refusal::Foreign { group: row.group }))
                }
                "newer" => {
                    let row = self.read(std::slice::from_ref(&wish.key)).await?.pop();
                    let newer = |row: super::LockRow| Refusal::ProtocolNewer { protocol: row.protocol };
                    Acquired::Refused(row.map_or(Refusal::Busy, newer))
                }
                "history" => {
                    self.begin_era().await?;
                    continue;
                }
                "again" => continue,
                verdict => Acquired::Refused(
                    refusal(row, verdict)?.ok_or_else(|| unexpected("acquire", "done without a token"))?,
                ),
            });
        }
        Ok(Acquired::Refused(Refusal::Busy))
    }

    /// Gives the key up; the first living waiter holds it at once, and is woken (in an era that has not
    /// [settled](super::Settler) only once it has). Only in the term with this token: after the key went to somebody else
    /// the answer is [`Refusal::TokenChanged`], and nothing was changed.
    pub async fn release(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        reason: &str,
    ) -> Result<Changed, LockError> {
        Ok(match self.let_go(Some(own), key, token, reason, None).await? {
            LetGo::Done => Changed::Done,
            LetGo::Refused(refusal) => Changed::Refused(refusal),
            LetGo::Free | LetGo::NoHeir => return Err(unexpected("release", "neither done nor refused")),
        })
    }

    /// Gives the key to one that waits for it, ahead of the queue; the others keep their places. Else as
    /// [`release`](Self::release), except that nothing was changed unless the answer is [`HandOver::Done`]. While a fenced
    /// transaction of the present term is under way, or the era has not [settled](super::Settler), the answer is
    /// [`Refusal::Busy`].
    pub async fn hand_over(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        heir: Heir<'_>,
        reason: &str,
    ) -> Result<HandOver, LockError> {
        Ok(match self.let_go(Some(own), key, token, reason, Some(heir)).await? {
            LetGo::Done => HandOver::Done,
            LetGo::NoHeir => HandOver::NotWaiting,
            LetGo::Refused(refusal) => HandOver::Refused(refusal),
            LetGo::Free => return Err(unexpected("hand over", "held by nobody")),
        })
    }

    /// The one way in which a key that a program holds becomes free or goes to the next one. By force without a session.
    pub(super) async fn let_go(
        &self,
        own: Option<SessionId>,
        key: &Key,
        token: Token,
        reason: &str,
        heir: Option<Heir<'_>>,
    ) -> Result<LetGo, LockError> {
        check_text("reason", reason)?;
        for _ in 0..ATTEMPTS {
            let bind = Bind::new()
                .with(own.map(SessionId::as_uuid))?
                .with(i32::try_from(PROTOCOL).unwrap_or(i32::MAX))?
                .with(TOKEN_JUMP)?
                .with(key.as_str())?
                .with(HOLD_GROUP)?
                .with(token.get())?
                .with(reason)?
                .with(heir.and_then(Heir::uid))?
                .with(heir.and_then(Heir::name))?;
            let rows = self.rows(RELEASE, bind).await?;
            let row = rows.first().ok_or_else(|| unexpected("release", "no rows"))?;
            for request in ["next_request", "old_request"] {
                if let Some(request) = get::<Option<uuid::Uuid>>(row, request)? {
                    self.wake(request).await;
                }
            }
            return Ok(match get::<&str>(row, "verdict")? {
                "free" => LetGo::Free,
                "no-heir" => LetGo::NoHeir,
                "history" => {
                    self.begin_era().await?;
                    continue;
                }
                verdict => match refusal(row, verdict)? {
                    None => LetGo::Done,
                    Some(Refusal::TokenChanged { .. }) => {
                        let row = self.read(std::slice::from_ref(key)).await?.pop().map(Box::new);
                        LetGo::Refused(Refusal::TokenChanged { row })
                    }
                    Some(refusal) => LetGo::Refused(refusal),
                },
            });
        }
        Ok(LetGo::Refused(Refusal::Busy))
    }

    /// Leaves the queue. If it was the wish's turn meanwhile, the key is released again.
    pub async fn give_up(&self, own: SessionId, key: &Key, request: GrantId) -> Result<(), LockError> {
        let bind = Bind::new().with(own.as_uuid())?.with(key.as_str())?.with(request.as_uuid())?;
        let rows = self.rows(GIVE_UP, bind).await?;
        let row = rows.first().ok_or_else(|| unexpected("give up", "no rows"))?;
        if let Some(token) = get::<Option<i64>>(row, "token")? {
            // Refused only if the key went to somebody else in between, which is as good.
            self.release(own, key, Token::new(token), "nobody waited any more").await?;
        }
        Ok(())
    }

    /// What a session holds or waits for by other requests than the known ones, with its keys; at most
    /// [`LONGEST_LIST`](super::LONGEST_LIST).
    pub(super) async fn own_requests(
        &self,
        own: SessionId,
        known: Vec<uuid::Uuid>,
    ) -> Result<Vec<(Key, GrantId)>, LockError> {
        let bind = Bind::new()
            .with(own.as_uuid())?
            .with(HOLD_GROUP)?
            .with(known)?
            .with(i64::from(super::LONGEST_LIST))?;
        let rows = self.rows(OWN_REQUESTS, bind).await?;
        rows.iter()
            .map(|row| Ok((Key::stored(get(row, "key")?), get::<uuid::Uuid>(row, "request")?.into())))
            .collect()
    }

    /// After the commit and in a transaction of its own, as all notifications. Only a hint.
    async fn wake(&self, request: uuid::Uuid) {
        let sent = match Bind::new().with(TURN_CHANNEL).and_then(|bind| bind.with(request.to_string())) {
            Ok(bind) => self.rows(WAKE, bind).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "the word did not get through; whom it was for will notice at its next look");
        }
    }
}
