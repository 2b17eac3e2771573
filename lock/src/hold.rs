//! Locks that a program holds itself: taken at once, waited for in order, and handed straight to the next one.
//!
//! Each operation may be repeated without harm. What is asked most goes the short way (`short.rs`), together with what else is
//! asked at the same time. If that has no answer, a function has: it locks the row before it reads who waits
//! (`migrations/0003_waiters.sql`), so that nobody is overlooked. A session that dies loses what it holds
//! as soon as others have [marked it dead](Store::mark_dead), and its place among those that wait.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::postgres::PgRow;

use super::model::check_text;
use super::pool::Statement;
use super::short::{Freeing, Looking, Seen, Taking};
use super::store::{Bind, get, unexpected};
use super::verdict::refusal;
use super::{
    Acquired, Changed, GrantId, HandOver, Heir, Key, LockError, Refusal, SessionId, Store, TOKEN_JUMP, Token,
    Wish,
};

const ACQUIRE: Statement = Statement {
    name: "acquire",
    sql: "select a.verdict, a.token, a.delay_ms, null::uuid as session, null::text as group_id, null::integer as protocol \
          from leadergroup.acquire($1, $2, $12, $3, $4, $5, $6, $7, $8, $9, $10, $13, $11, $14, $15, $16) as a",
};
const RELEASE: Statement = Statement {
    name: "release",
    sql: "select r.verdict, r.next_request, r.next_session, r.old_request, r.old_session, null::uuid as session, \
                 r.found_group as group_id, $2 as protocol \
          from leadergroup.release($1, $2, $8, $3, $4, $5, $6, $9, $10, $7) as r",
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

/// The channel on which a session's waiters are woken, and its holders whose key was taken away; the payload is their request.
/// One for each session: the server has no word for those whom it does not concern.
pub(super) fn turn_channel(session: SessionId) -> String {
    format!("leadergroup_turn_{}", session.as_uuid().simple())
}

/// Most living waiters for one key.
pub const MOST_WAITERS: u32 = 10_000;

/// How often a change of the database's history, or of the row, may come in between.
const ATTEMPTS: usize = 5;

/// What somebody who wants a key is after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Try,
    ToQueue,
    Again,
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

/// The first answer, or the second one where the first says nothing.
async fn or(
    first: impl Future<Output = Result<Seen, LockError>>,
    second: impl Future<Output = Result<Seen, LockError>>,
) -> Result<Seen, LockError> {
    match first.await? {
        Seen::Open => second.await,
        seen => Ok(seen),
    }
}

impl Store {
    /// Takes the key if nobody holds it and nobody waits for it. Never waits for another holder, nor for one who is about to
    /// become it: then the answer is [`Refusal::Busy`]. That one may be the same wish's first try, whose answer was lost on the way
    /// and which is still under way: repeat it until there is another answer, or [give it up](Self::give_up). Only transactions
    /// of the last holder that are fenced, and still under way, are waited for as the [`FencePolicy`](super::FencePolicy) says.
    pub async fn try_hold(&self, own: SessionId, wish: &Wish) -> Result<Acquired, LockError> {
        self.acquire(own, wish, Asks::Try).await
    }

    /// As [`try_hold`](Self::try_hold), but queues up if the key is not to be had: the answer is [`Acquired::Waiting`].
    /// Repeat the same wish to see whether it is its turn. The queue is first come, first served. Whoever does not want to
    /// wait any longer has to [say so](Self::give_up).
    pub async fn queue_for(&self, own: SessionId, wish: &Wish) -> Result<Acquired, LockError> {
        self.acquire(own, wish, Asks::ToQueue).await
    }

    /// The same for a wish that was asked for before, and is likely to wait or to have been fulfilled meanwhile.
    pub(super) async fn queue_again(&self, own: SessionId, wish: &Wish) -> Result<Acquired, LockError> {
        self.acquire(own, wish, Asks::Again).await
    }

    async fn acquire(&self, own: SessionId, wish: &Wish, asks: Asks) -> Result<Acquired, LockError> {
        let repeats = self.pool.repeats();
        let answer = self.ask(own, wish, asks).await?;
        if answer == Acquired::Refused(Refusal::Busy) && self.pool.repeats() != repeats {
            let detail = "the connection broke, and what was asked on it may still be under way".to_owned();
            return Err(LockError::Interrupted { statement: ACQUIRE.name, detail });
        }
        let had = match answer {
            Acquired::Granted { .. } => true,
            Acquired::Held
            | Acquired::Waiting
            | Acquired::QueueFull
            | Acquired::Delayed { .. }
            | Acquired::Refused(Refusal::Busy) => {
                self.counters.contended();
                false
            }
            Acquired::Refused(_) => return Ok(answer),
        };
        // That somebody's turn came at last says nothing of the next wish.
        if asks != Asks::Again {
            self.keys_are_held.store(!had, Ordering::Relaxed);
        }
        Ok(answer)
    }

    async fn ask(&self, own: SessionId, wish: &Wish, asks: Asks) -> Result<Acquired, LockError> {
        check_text("owner's uid", &wish.owner.uid)?;
        check_text("owner's namespace", &wish.owner.namespace)?;
        check_text("owner's name", &wish.owner.name)?;
        check_text("reason", &wish.reason)?;
        let delay_ms = i64::try_from(wish.lock_delay.as_millis())
            .map_err(|_| LockError::Invalid { what: "lock delay", problem: "is too long".to_owned() })?;
        let taking = || Taking { own, wish: wish.clone(), delay_ms };
        match self.ask_in_short(taking(), asks).await? {
            Seen::Granted(token) => return Ok(Acquired::Granted { token }),
            Seen::Held => return Ok(Acquired::Held),
            Seen::Waiting => return Ok(Acquired::Waiting),
            Seen::Open => {}
        }
        let passing = self.passing();
        let bind = taking()
            .bind()?
            .with(asks != Asks::Try)?
            .with(TOKEN_JUMP)?
            .with(wish.delay_over.map(Token::get))?
            .with(i32::try_from(MOST_WAITERS).unwrap_or(i32::MAX))?
            .with(passing.patience_ms)?
            .with(passing.force_ms)?;
        for _ in 0..ATTEMPTS {
            let rows = self.rows(ACQUIRE, bind.clone()).await?;
            if let Some(answer) = self.acquired(&rows, wish).await? {
                return Ok(answer);
            }
        }
        Ok(Acquired::Refused(Refusal::Busy))
    }

    /// What the short ways have to say, the one that is likely to have an answer first.
    async fn ask_in_short(&self, taking: Taking, asks: Asks) -> Result<Seen, LockError> {
        let Wish { key, request, .. } = &taking.wish;
        let looking =
            Looking { own: taking.own, key: key.clone(), request: *request, waits: asks != Asks::Try };
        let take = async {
            let token = self.taking.ask(self, taking).await?;
            Ok(token.map_or(Seen::Open, Seen::Granted))
        };
        let look = self.looking.ask(self, looking);
        match (asks, self.keys_are_held.load(Ordering::Relaxed)) {
            (Asks::Again, _) => look.await,
            (Asks::ToQueue, false) => take.await,
            // It takes the long way to queue up.
            (Asks::ToQueue, true) => Ok(Seen::Open),
            (Asks::Try, false) => or(take, look).await,
            (Asks::Try, true) => or(look, take).await,
        }
    }

    /// What the answer says, if it is one.
    async fn acquired(&self, rows: &[PgRow], wish: &Wish) -> Result<Option<Acquired>, LockError> {
        let row = rows.first().ok_or_else(|| unexpected("acquire", "no rows"))?;
        Ok(Some(match get::<&str>(row, "verdict")? {
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
                return Ok(None);
            }
            "again" => return Ok(None),
            verdict => Acquired::Refused(
                refusal(row, verdict)?.ok_or_else(|| unexpected("acquire", "done without a token"))?,
            ),
        }))
    }

    /// Gives the key up; the first living waiter holds it at once, and is woken (in an era that has not
    /// [settled](super::Settler) only once it has; while a fenced transaction of this term is under way, once that has ended).
    /// Only in the term with this token: after the key went to somebody else the answer is [`Refusal::TokenChanged`], and
    /// nothing was changed.
    pub async fn release(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        reason: &str,
    ) -> Result<Changed, LockError> {
        self.free(own, key, token, reason, false).await
    }

    /// The same; `repaired` by a program that finds out what a crash of the server takes back, and does it again: if nobody
    /// waits for the key nothing waits for the disk.
    pub(super) async fn free(
        &self,
        own: SessionId,
        key: &Key,
        token: Token,
        reason: &str,
        repaired: bool,
    ) -> Result<Changed, LockError> {
        Ok(match self.let_go(Some(own), key, token, reason, None, repaired).await? {
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
        Ok(match self.let_go(Some(own), key, token, reason, Some(heir), false).await? {
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
        repaired: bool,
    ) -> Result<LetGo, LockError> {
        check_text("reason", reason)?;
        let id = uuid::Uuid::new_v4();
        let freeing = || Freeing { own, key: key.clone(), token, reason: reason.to_owned(), id, repaired };
        // If nobody waits for it and nothing speaks against it.
        if own.is_some() && heir.is_none() && self.freeing.ask(self, freeing()).await? {
            return Ok(LetGo::Done);
        }
        let bind = freeing()
            .bind()?
            .with(TOKEN_JUMP)?
            .with(heir.and_then(Heir::uid))?
            .with(heir.and_then(Heir::name))?;
        for _ in 0..ATTEMPTS {
            let rows = self.rows(RELEASE, bind.clone()).await?;
            let row = rows.first().ok_or_else(|| unexpected("release", "no rows"))?;
            for (request, session) in [("next_request", "next_session"), ("old_request", "old_session")] {
                let request = get::<Option<uuid::Uuid>>(row, request)?;
                if let Some((request, session)) = request.zip(get::<Option<uuid::Uuid>>(row, session)?) {
                    self.wake(request, session.into()).await;
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
    async fn wake(&self, request: uuid::Uuid, session: SessionId) {
        let sent =
            match Bind::new().with(turn_channel(session)).and_then(|bind| bind.with(request.to_string())) {
                Ok(bind) => self.rows(WAKE, bind).await,
                Err(error) => Err(error),
            };
        if let Err(error) = sent {
            tracing::debug!(%error, "the word did not get through; whom it was for will notice at its next look");
        }
    }
}
