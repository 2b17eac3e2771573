//! A key that is held, and how its holder learns that it is not held any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::client::Shared;
use super::spans::{handing_over, releasing, within};
use super::{Changed, GrantId, HandOver, Heir, Key, LockError, Refusal, SessionId, Token, monotonic};

/// The longest that [`Guard::lost`] sleeps at once: timers stand still while the machine does, the belief does not.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

const REASON: &str = "released by its holder";
const HANDED_OVER: &str = "handed over by its holder";

/// One term of an owner. The last guard that lets go of it releases the key.
pub(super) struct Term {
    shared: Arc<Shared>,
    pub(super) session: SessionId,
    pub(super) key: Key,
    /// For people.
    pub(super) owner: String,
    pub(super) token: Token,
    request: GrantId,
    /// How many guards there are. Nobody comes in again once there is none, though the term still lasts.
    guards: AtomicUsize,
    /// For ever, once it was seen.
    lost: AtomicBool,
    released: AtomicBool,
    pub(super) since: Instant,
}

impl Term {
    pub(super) fn new(
        shared: Arc<Shared>,
        session: SessionId,
        key: Key,
        owner: String,
        request: GrantId,
        token: Token,
    ) -> Self {
        let (lost, released) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            shared,
            session,
            key,
            owner,
            token,
            request,
            guards: AtomicUsize::new(0),
            lost,
            released,
            since: Instant::now(),
        }
    }

    /// It is known to be over. `false` if it was given up by its holder, or lost before.
    pub(super) fn end(&self) -> bool {
        // Also without a guard: one may come back from a handover that is under way.
        let first = !self.lost.swap(true, Ordering::Relaxed);
        first && !self.released.load(Ordering::Relaxed) && self.guards.load(Ordering::Relaxed) > 0
    }

    fn is_lost(&self) -> bool {
        if !self.lost.load(Ordering::Relaxed) && !self.shared.lease.borrow().covers(self.session) {
            self.lost.store(true, Ordering::Relaxed);
        }
        self.lost.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn release(&self, session: SessionId, key: &Key, token: Token) -> Result<Changed, LockError> {
        self.wishes.releases();
        self.store.free(session, key, token, REASON, true).await
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        let released = *self.released.get_mut();
        let lost = !released && self.is_lost();
        tracing::debug!(key = %self.key, token = %self.token, held = ?self.since.elapsed(), lost, "let go of the lock");
        self.shared.store.counters.held(self.since.elapsed(), lost);
        // What is lost is another one's, or goes with the session: a release would be an end in order, without the delay.
        if released || lost {
            return self.shared.terms.leave(self.request);
        }
        let (shared, session, request) = (Arc::clone(&self.shared), self.session, self.request);
        let (key, token) = (self.key.clone(), self.token);
        let release = within(releasing(self), async move {
            let answer = shared.insist(session, async || shared.release(session, &key, token).await).await;
            // Not before, lest it look like what nobody knows of.
            shared.terms.leave(request);
            Ok::<_, LockError>(answer.map_or(Released::WasLost, Released::from))
        });
        self.shared.runtime.spawn(release);
    }
}

/// Proof that a key is held. Dropping it releases the key, in the background; [`release`](Self::release) waits until that
/// is done. An owner that took the key more than once holds it until the last guard is gone.
#[must_use = "dropping the guard releases the key"]
pub struct Guard {
    term: Arc<Term>,
    /// Whether the term counts it.
    counted: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.counted {
            self.term.guards.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What handing a key over came to. Where a guard comes back nothing was changed.
#[derive(Debug)]
#[must_use = "dropping the guard releases the key"]
pub enum HandedOver {
    /// The heir holds the key.
    Done,
    /// Nobody alive of that description waits for the key.
    NotWaiting(Guard),
    /// The owner holds the key by other guards, too.
    StillHeld(Guard),
    /// Fenced transactions of this term are still under way, or the database failed over less than a ttl ago: try again when
    /// that is over.
    Busy(Guard),
    /// It was lost before: others may have held it since.
    WasLost,
}

/// What a release came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The key is free, or the next one's already.
    Done,
    /// The owner holds it by other guards.
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
        let Term { key, token, .. } = &*self.term;
        f.debug_struct("Guard").field("key", key).field("token", token).finish_non_exhaustive()
    }
}

impl Guard {
    /// The first one of a term.
    pub(super) fn new(term: Arc<Term>) -> Self {
        term.guards.fetch_add(1, Ordering::AcqRel);
        Self { term, counted: true }
    }

    /// Another one of a term that still has one and is not lost.
    pub(super) fn again(term: Arc<Term>) -> Option<Self> {
        let more = |guards| if guards > 0 { Some(guards + 1) } else { None };
        term.guards.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let guard = Self { term, counted: true };
        (!guard.is_lost()).then_some(guard)
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.term.key
    }

    /// The fencing token of the term, to be shown to whatever is written to.
    pub fn token(&self) -> Token {
        self.term.token
    }

    /// Whether others may hold the key. Once it is lost it stays lost, even if nobody took it. Between this answer and what
    /// is done upon it the process may be paused for any time: only a fence protects against that.
    pub fn is_lost(&self) -> bool {
        self.term.is_lost()
    }

    /// Until when the key is surely held as far as is known at this moment, by [`monotonic`]; every heartbeat makes it longer.
    /// A fifth of the ttl later others can have it. `None` once it is lost.
    pub fn held_until(&self) -> Option<Duration> {
        let lease = *self.term.shared.lease.borrow();
        lease.belief.until().filter(|_| lease.session == self.term.session && !self.is_lost())
    }

    /// Completes when the key is lost: the session was given up, or its heartbeats have not got through for so long that
    /// others may soon take it. That is a fifth of the ttl before anybody can, for the work to be stopped in.
    pub async fn lost(&self) {
        let mut lease = self.term.shared.lease.subscribe();
        while !self.is_lost() {
            let until = lease.borrow_and_update().belief.until();
            let left = until.unwrap_or_default().saturating_sub(monotonic());
            // The sender lives as long as the term; whether it changed or the time is up, look again.
            let _ = timeout(left.min(LONGEST_SLEEP), lease.changed()).await;
        }
    }

    /// Releases the key and waits until it is done; the next one in the queue holds it then. An error means that nobody
    /// knows: the release is repeated in the background.
    pub async fn release(self) -> Result<Released, LockError> {
        within(releasing(&self.term), self.let_go()).await
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
        let answer = term.shared.release(term.session, &term.key, term.token).await?;
        term.released.store(true, Ordering::Relaxed);
        Ok(answer.into())
    }

    /// Gives the key to one that waits for it, ahead of the queue, and returns when it is done; the others keep their
    /// places. The work has to be finished before. An error means that nobody knows: if the key was not handed over it is
    /// released in the background.
    ///
    /// ```no_run
    /// # async fn example(guard: leadergroup_lock::Guard) -> Result<(), Box<dyn std::error::Error>> {
    /// use leadergroup_lock::{HandedOver, Heir};
    ///
    /// match guard.hand_over_to(Heir::Name("worker-2")).await? {
    ///     HandedOver::Done => println!("worker-2 goes on"),
    ///     HandedOver::NotWaiting(guard) => println!("worker-2 is not there; {} stays here", guard.key()),
    ///     other => println!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hand_over_to(self, heir: Heir<'_>) -> Result<HandedOver, LockError> {
        within(handing_over(&self.term, heir), self.give_to(heir)).await
    }

    async fn give_to(mut self, heir: Heir<'_>) -> Result<HandedOver, LockError> {
        // From now on this owner's tries find no term to come in to.
        if self.term.guards.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Ok(HandedOver::StillHeld(self));
        }
        self.counted = false;
        let term = &self.term;
        if term.is_lost() {
            return Ok(HandedOver::WasLost);
        }
        let answer =
            term.shared.store.hand_over(term.session, &term.key, term.token, heir, HANDED_OVER).await?;
        let unchanged = match answer {
            HandOver::NotWaiting => HandedOver::NotWaiting,
            HandOver::Refused(Refusal::Busy) => HandedOver::Busy,
            HandOver::Done | HandOver::Refused(_) => {
                term.released.store(true, Ordering::Relaxed);
                let done = answer == HandOver::Done;
                return Ok(if done { HandedOver::Done } else { HandedOver::WasLost });
            }
        };
        term.guards.store(1, Ordering::Release);
        self.counted = true;
        Ok(unchanged(self))
    }
}
