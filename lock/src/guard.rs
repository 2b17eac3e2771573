//! Guards: keys that are held, and how their holders learn of a loss.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tracing::Span;

use crate::applicant::SharedTerms;
use crate::lookout::SHORTEST_SLEEP;
use crate::process::Process;
use crate::reconcile::{HELD_TOO_LONG, Term, TermRow};
use crate::trace::{self, Traced, within};
use crate::unfinished::{Unfinished, give_up_once_void};
use crate::{Changed, ClientError, GrantId, Key, LockError, Refusal, SessionId, Successor, Token, Transfer};

const RELEASED: &str = "released by its holder";
const TRANSFERRED: &str = "transferred by its holder";

/// One term of a holder. The key is released when the last guard of the term is dropped.
pub(crate) struct HeldTerm {
    process: Arc<Process>,
    session: SessionId,
    key: Key,
    /// The holder's name, for people.
    holder: String,
    token: Token,
    grant: GrantId,
    /// Set if a statement of the granted request may still be under way; it is void after this heartbeat.
    unclear: Option<u64>,
    /// When the term must end because of `max_hold`.
    ends_at: Option<Duration>,
    /// The number of guards. Once it is zero, no guard is added, though the term still lasts.
    guards: AtomicUsize,
    /// When the term was lost. Once that was seen, it stays lost.
    lost: OnceLock<Duration>,
    released: AtomicBool,
    /// Released because of `max_hold`, whatever the guards do.
    freed: AtomicBool,
    since: Instant,
    /// Where the holder finds the term again, if it is reentrant.
    shared: Option<SharedTerms>,
}

impl HeldTerm {
    /// The term of a request that was granted. It may last for `max_hold`, if given.
    pub(crate) fn new(
        granted: &mut Unfinished,
        holder: String,
        token: Token,
        max_hold: Option<Duration>,
        shared: Option<SharedTerms>,
    ) -> Arc<Self> {
        Arc::new(Self {
            process: Arc::clone(&granted.process),
            session: granted.session,
            key: granted.key.clone(),
            holder,
            token,
            grant: granted.grant,
            unclear: granted.disarm(),
            ends_at: max_hold.map(|max| granted.process.now() + max),
            guards: AtomicUsize::new(0),
            lost: OnceLock::new(),
            released: AtomicBool::new(false),
            freed: AtomicBool::new(false),
            since: Instant::now(),
            shared,
        })
    }

    /// A release as a span, also in the background.
    fn releasing(&self) -> Span {
        trace::releasing(&self.key, &self.holder, self.token, self.since.elapsed())
    }

    fn transferring(&self, successor: Successor<'_>) -> Span {
        trace::transferring(&self.key, &self.holder, self.token, self.since.elapsed(), successor)
    }

    fn is_lost(&self) -> bool {
        self.is_taken() || self.is_overdue()
    }

    /// Others may hold the key.
    fn is_taken(&self) -> bool {
        if self.lost.get().is_none() && !self.process.covers(self.session) {
            let _ = self.lost.set(self.end_of_lease());
        }
        self.lost.get().is_some()
    }

    /// When the lease ended, as far as it is known; at the latest now.
    fn end_of_lease(&self) -> Duration {
        let (lease, now) = (*self.process.lease.borrow(), self.process.now());
        lease.until().filter(|_| lease.session == self.session).map_or(now, |until| until.min(now))
    }

    /// For how long it has been lost.
    fn lost_for(&self) -> Option<Duration> {
        let now = self.process.now();
        let taken = self.is_taken().then(|| self.lost.get().copied()).flatten();
        let at = [taken, self.ends_at.filter(|at| *at <= now)].into_iter().flatten().min()?;
        Some(now.saturating_sub(at))
    }

    /// Whether the term has lasted for `max_hold`. No one else gets the key before it is released.
    fn is_overdue(&self) -> bool {
        self.ends_at.is_some_and(|at| at <= self.process.now())
    }

    /// Until when the key is certainly held.
    fn until(&self) -> Option<Duration> {
        let lease = *self.process.lease.borrow();
        let until = lease.until().filter(|_| lease.session == self.session && !self.is_lost())?;
        Some(self.ends_at.map_or(until, |at| at.min(until)))
    }

    /// Whether a heartbeat or two are missing, or little is left of `max_hold`.
    fn is_in_jeopardy(&self) -> bool {
        let Some(until) = self.until() else { return true };
        let lease = self.process.lease.borrow().lasts();
        let near_its_end = self.ends_at.is_some_and(|at| at.saturating_sub(self.process.now()) < lease / 2);
        until.saturating_sub(self.process.now()) < lease / 2 || near_its_end
    }

    /// See [`Guard::lost`].
    pub(crate) async fn lost(&self) {
        self.watch(Self::is_lost, Self::until).await;
    }

    /// When [`is_in_jeopardy`](Self::is_in_jeopardy) will be true, if nothing changes.
    fn jeopardy(&self) -> Option<Duration> {
        let half = self.process.lease.borrow().lasts() / 2;
        self.until().map(|until| until.saturating_sub(half))
    }

    /// Waits for a condition that will be true `when` it says, if nothing changes.
    async fn watch(&self, condition: impl Fn(&Self) -> bool, when: impl Fn(&Self) -> Option<Duration>) {
        let mut outlook = self.process.look_out();
        loop {
            outlook.borrow_and_update();
            if condition(self) {
                return;
            }
            // The sender lives as long as the term. Check again, whether something changed or the time is over.
            let left = when(self).unwrap_or_default().saturating_sub(self.process.now());
            let _ = timeout(left.max(SHORTEST_SLEEP), outlook.changed()).await;
        }
    }
}

impl Term for HeldTerm {
    fn row(&self) -> TermRow {
        TermRow { key: self.key.clone(), token: self.token, session: self.session }
    }

    fn end(&self) -> bool {
        // This also applies without a guard: a transfer that is under way may return one.
        let first = self.lost.set(self.end_of_lease()).is_ok();
        self.process.lookout.alarm();
        first && !self.released.load(Ordering::Relaxed) && self.guards.load(Ordering::Relaxed) > 0
    }

    /// Whether the term has lasted for `max_hold`, and its holder has since had as much time to stop as after the loss
    /// of its session.
    fn is_to_be_freed(&self) -> bool {
        let margin = self.process.lease.borrow().margin();
        self.ends_at.is_some_and(|at| at + margin <= self.process.now())
            && !self.freed.load(Ordering::Relaxed)
            && !self.released.load(Ordering::Relaxed)
            && !self.is_taken()
    }

    fn freed(&self) {
        self.freed.store(true, Ordering::Relaxed);
    }
}

impl Drop for HeldTerm {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.leave(&self.key, self);
        }
        let released = *self.released.get_mut() || *self.freed.get_mut();
        let (gone, overdue) = (self.is_taken(), self.is_overdue());
        let lost = !released && (gone || overdue);
        let held = self.since.elapsed();
        tracing::debug!(key = %self.key, token = %self.token, ?held, lost, "the lock is no longer held");
        self.process.store.database.counters.held(held, lost);
        let (process, session, grant) = (Arc::clone(&self.process), self.session, self.grant);
        let (key, token, unclear) = (self.key.clone(), self.token, self.unclear);
        // A key that was lost belongs to another holder, or ends with the session: releasing it would end the term in
        // order, without its delay.
        let releasing = (!released && !gone).then(|| self.releasing());
        let reason = if overdue { HELD_TOO_LONG } else { RELEASED };
        if releasing.is_none() {
            process.terms.leave(grant);
            if unclear.is_none() {
                return;
            }
        }
        self.process.runtime.spawn(async move {
            if let Some(span) = releasing {
                let _ = within(span, async {
                    let release = async || process.store.release(session, &key, token, reason).await;
                    let answer = process.insist(session, release).await;
                    process.terms.leave(grant);
                    Ok::<_, LockError>(answer.map_or(Released::WasLost, Released::from))
                })
                .await;
            }
            if let Some(void_after) = unclear {
                give_up_once_void(&process, session, &key, grant, void_after).await;
            }
        });
    }
}

/// Proof that a key is held. Dropping it releases the key in the background; [`release`](Self::release) waits until
/// that is done. A [reentrant](crate::ClientConfig::reentrant) holder that took the key more than once holds it until
/// the last guard is dropped.
#[must_use = "dropping the guard releases the key"]
pub struct Guard {
    term: Arc<HeldTerm>,
    /// Whether the term counts this guard.
    counted: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.counted {
            self.term.guards.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The outcome of a transfer. If it contains a guard, nothing was changed.
#[derive(Debug)]
#[must_use = "dropping the guard releases the key"]
pub enum Transferred {
    /// The successor holds the key.
    Done,
    /// No living waiter matches.
    NotWaiting(Guard),
    /// The holder has other guards for the key.
    StillHeld(Guard),
    /// Fenced transactions of this term are still under way, or the era is in [quarantine](crate::Quarantine) after a
    /// failover: try again later.
    Busy(Guard),
    /// It was lost before: others may have held it since.
    WasLost,
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The key is free, or already held by the next holder.
    Done,
    /// The holder has other guards for the key.
    StillHeld,
    /// It was lost before: others may have held it since.
    WasLost,
}

impl From<Changed> for Released {
    fn from(answer: Changed) -> Self {
        match answer {
            Changed::Done => Self::Done,
            Changed::Refused(_) => Self::WasLost,
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HeldTerm { key, token, .. } = &*self.term;
        f.debug_struct("Guard").field("key", key).field("token", token).finish_non_exhaustive()
    }
}

impl Guard {
    /// The first guard of a term.
    pub(crate) fn new(term: Arc<HeldTerm>) -> Self {
        term.guards.fetch_add(1, Ordering::AcqRel);
        Self { term, counted: true }
    }

    /// Another guard of a term that still has one and is not lost.
    pub(crate) fn again(term: Arc<HeldTerm>) -> Option<Self> {
        let more = |guards| if guards > 0 { Some(guards + 1) } else { None };
        term.guards.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let guard = Self { term, counted: true };
        (!guard.is_lost()).then_some(guard)
    }

    /// The term, for work that outlives a borrow of the guard.
    pub(crate) fn term(&self) -> Arc<HeldTerm> {
        Arc::clone(&self.term)
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.term.key
    }

    /// The fencing token of the term. Pass it to every store that the work writes to.
    pub fn token(&self) -> Token {
        self.term.token
    }

    /// Whether others may hold the key. Once it is lost it stays lost, even if no one took it. The process may be
    /// paused for any time between this answer and its next step: only a fence protects against that.
    pub fn is_lost(&self) -> bool {
        self.term.is_lost()
    }

    /// The error of work that was under way when the key was lost; `None` while it is held.
    pub(crate) fn loss(&self) -> Option<ClientError> {
        let ago = self.term.lost_for()?;
        Some(ClientError::Lost { key: self.key().to_string(), token: self.token(), ago })
    }

    /// Like [`lost`](Self::lost), and returns the error.
    pub(crate) async fn wait_for_loss(&self) -> ClientError {
        loop {
            self.lost().await;
            if let Some(loss) = self.loss() {
                return loss;
            }
        }
    }

    /// Until when the key is certainly held, by the store's [clock](crate::Store::clock), as known at this moment;
    /// every heartbeat extends it. Others can have the key a fifth of the ttl later. `None` once it is lost.
    pub fn held_until(&self) -> Option<Duration> {
        self.term.until()
    }

    /// Completes when the key is lost: the session is dead; its heartbeats have failed for so long that others may soon
    /// take the key; the key was released by force; or [`max_hold`](crate::ClientConfig::max_hold) has passed. In the
    /// second case, this is a fifth of the ttl before anyone else can have it: time to stop the work.
    pub async fn lost(&self) {
        self.term.lost().await;
    }

    /// Completes when the key is about to be lost: less than half of the lease is left because heartbeats fail, or
    /// little is left of [`max_hold`](crate::ClientConfig::max_hold). This is the time to save work; the key may
    /// recover. Also completes when the key is lost.
    pub async fn in_jeopardy(&self) {
        self.term.watch(|term| term.is_lost() || term.is_in_jeopardy(), HeldTerm::jeopardy).await;
    }

    /// Releases the key and waits until it is done; the next waiter then holds it. After an error, the outcome is
    /// unknown: the release is repeated in the background.
    pub async fn release(self) -> Result<Released, LockError> {
        within(self.term.releasing(), self.let_go()).await
    }

    async fn let_go(mut self) -> Result<Released, LockError> {
        self.counted = false;
        if self.term.guards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(Released::StillHeld);
        }
        let term = &self.term;
        if term.is_lost() {
            return Ok(Released::WasLost);
        }
        let answer = term.process.store.release(term.session, &term.key, term.token, RELEASED).await?;
        term.released.store(true, Ordering::Relaxed);
        Ok(answer.into())
    }

    /// Gives the key to a waiter, ahead of the queue, and returns when it is done; the others keep their places. The
    /// work must be finished before. After an error, the outcome is unknown: if the key was not transferred, it is
    /// released in the background.
    ///
    /// ```no_run
    /// # async fn example(guard: leadergroup_lock::Guard) -> Result<(), Box<dyn std::error::Error>> {
    /// use leadergroup_lock::{Successor, Transferred};
    ///
    /// match guard.transfer_to(Successor::Name("worker-2")).await? {
    ///     Transferred::Done => println!("worker-2 continues"),
    ///     Transferred::NotWaiting(guard) => println!("worker-2 does not wait; {} stays here", guard.key()),
    ///     other => println!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transfer_to(self, successor: Successor<'_>) -> Result<Transferred, LockError> {
        within(self.term.transferring(successor), self.give_to(successor)).await
    }

    async fn give_to(mut self, successor: Successor<'_>) -> Result<Transferred, LockError> {
        // From now on, this holder's tries cannot share the term.
        if self.term.guards.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Ok(Transferred::StillHeld(self));
        }
        self.counted = false;
        let term = &self.term;
        if term.is_lost() {
            return Ok(Transferred::WasLost);
        }
        let store = &term.process.store;
        let answer = store.transfer(term.session, &term.key, term.token, successor, TRANSFERRED).await?;
        let unchanged = match answer {
            Transfer::NotWaiting => Transferred::NotWaiting,
            Transfer::Refused(Refusal::Busy) => Transferred::Busy,
            Transfer::Done | Transfer::Refused(_) => {
                term.released.store(true, Ordering::Relaxed);
                let done = answer == Transfer::Done;
                return Ok(if done { Transferred::Done } else { Transferred::WasLost });
            }
        };
        term.guards.store(1, Ordering::Release);
        self.counted = true;
        Ok(unchanged(self))
    }
}

impl Traced for Guard {
    fn outcome(&self) -> &'static str {
        "held"
    }

    fn token(&self) -> Option<i64> {
        Some(self.token().get())
    }
}

impl Traced for Released {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::StillHeld => "still held",
            Self::WasLost => "was lost",
        }
    }
}

impl Traced for Transferred {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotWaiting(_) => "successor not waiting",
            Self::StillHeld(_) => "still held",
            Self::Busy(_) => "busy",
            Self::WasLost => "was lost",
        }
    }
}
