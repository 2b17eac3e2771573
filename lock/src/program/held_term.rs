//! Terms of a holder: how long each one lasts, when it is lost, and how its key is released in the background.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::timeout;
use tracing::Span;

use crate::program::trace::{self, Traced, within};
use crate::program::unfinished::{Unfinished, give_up_once_void};
use crate::session::lookout::SHORTEST_SLEEP;
use crate::session::process::Process;
use crate::session::reconcile::{HELD_TOO_LONG, Term, TermRow};
use crate::{Changed, ClientError, GrantId, Key, LockError, SessionId, Successor, Token};

pub(crate) const RELEASED: &str = "released by its holder";

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "`WasLost` says that others may have held the key during the work"]
#[non_exhaustive]
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

impl Traced for Released {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::StillHeld => "still held",
            Self::WasLost => "was lost",
        }
    }
}

/// The terms of a reentrant holder, by key. The guards keep them alive.
#[derive(Clone, Default)]
pub(crate) struct SharedTerms(Arc<Mutex<HashMap<Key, Weak<HeldTerm>>>>);

impl SharedTerms {
    pub(crate) fn enter(&self, key: &Key, term: &Arc<HeldTerm>) {
        self.0.lock().insert(key.clone(), Arc::downgrade(term));
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<HeldTerm>> {
        self.0.lock().get(key).and_then(Weak::upgrade)
    }

    /// Removes a term that is over, unless another one of the same key has taken its place.
    fn leave(&self, key: &Key, term: *const HeldTerm) {
        let mut all = self.0.lock();
        if all.get(key).is_some_and(|known| std::ptr::eq(known.as_ptr(), term)) {
            all.remove(key);
        }
    }
}

/// One term of a holder. The key is released when the last guard of the term is dropped.
pub(crate) struct HeldTerm {
    pub(crate) process: Arc<Process>,
    pub(crate) session: SessionId,
    pub(crate) key: Key,
    /// The holder's name, for people.
    holder: String,
    pub(crate) token: Token,
    grant: GrantId,
    /// Set if a statement of the granted request may still be under way; it is void after this heartbeat.
    unclear: Option<u64>,
    /// When the term must end because of `max_hold`.
    ends_at: Option<Duration>,
    /// The number of guards. Once it is zero, no guard is added, though the term still lasts.
    pub(crate) guards: AtomicUsize,
    /// When the term was lost. Once that was seen, it stays lost.
    lost: OnceLock<Duration>,
    pub(crate) released: AtomicBool,
    /// A transfer is under way, or its outcome is unknown: if the key turns out to be gone, the term need not be lost.
    pub(crate) transferring: AtomicBool,
    /// Released because of `max_hold`, whatever the guards do.
    freed: AtomicBool,
    since: Instant,
    /// Whether there is, or was, a [`Watcher`](crate::Watcher), which has to learn of the end.
    pub(crate) watched: AtomicBool,
    /// How often the holder has published something.
    pub(crate) published: AtomicI64,
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
            transferring: AtomicBool::new(false),
            freed: AtomicBool::new(false),
            since: Instant::now(),
            watched: AtomicBool::new(false),
            published: AtomicI64::new(0),
            shared,
        })
    }

    /// A release as a span, also in the background.
    pub(crate) fn release_span(&self) -> Span {
        trace::releasing(&self.key, &self.holder, self.token, self.since.elapsed())
    }

    pub(crate) fn transfer_span(&self, successor: Successor<'_>) -> Span {
        trace::transferring(&self.key, &self.holder, self.token, self.since.elapsed(), successor)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_taken() || self.is_overdue()
    }

    /// The server has answered its release.
    pub(crate) fn note_release(&self, answer: Released) -> Released {
        self.released.store(true, Ordering::Relaxed);
        if answer == Released::WasLost {
            count_loss(&self.process);
        }
        answer
    }

    /// Wakes those who observe the term, if there are any: it may be over.
    pub(crate) fn alarm_watchers(&self) {
        if self.watched.load(Ordering::Relaxed) {
            self.process.lookout.alarm();
        }
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
    pub(crate) fn lost_for(&self) -> Option<Duration> {
        let now = self.process.now();
        let taken = self.is_taken().then(|| self.lost.get().copied()).flatten();
        let at = [taken, self.ends_at.filter(|at| *at <= now)].into_iter().flatten().min()?;
        Some(now.saturating_sub(at))
    }

    /// The error of work that was under way when the key was lost; `None` while it is held.
    pub(crate) fn loss(&self) -> Option<ClientError> {
        self.lost_for().map(|ago| self.lost_ago(ago))
    }

    /// The error of work whose key was lost this long ago.
    pub(crate) fn lost_ago(&self, ago: Duration) -> ClientError {
        ClientError::Lost { key: self.key.to_string(), token: self.token, ago }
    }

    /// Whether the term has lasted for `max_hold`. No one else gets the key before it is released.
    fn is_overdue(&self) -> bool {
        self.ends_at.is_some_and(|at| at <= self.process.now())
    }

    /// Until when the key is certainly held.
    pub(crate) fn until(&self) -> Option<Duration> {
        let lease = *self.process.lease.borrow();
        let until = lease.until().filter(|_| lease.session == self.session && !self.is_lost())?;
        Some(self.ends_at.map_or(until, |at| at.min(until)))
    }

    /// For how long the key is certainly held.
    pub(crate) fn remaining(&self) -> Duration {
        self.left_until(self.until())
    }

    /// The time until then; zero if that is not known.
    pub(crate) fn left_until(&self, then: Option<Duration>) -> Duration {
        then.unwrap_or_default().saturating_sub(self.process.now())
    }

    /// Whether a heartbeat or two are missing, or little is left of `max_hold`.
    pub(crate) fn is_in_jeopardy(&self) -> bool {
        let Some(until) = self.until() else { return true };
        let lease = self.process.lease.borrow().lasts();
        let near_its_end = self.ends_at.is_some_and(|at| at.saturating_sub(self.process.now()) < lease / 2);
        until.saturating_sub(self.process.now()) < lease / 2 || near_its_end
    }

    /// See [`Guard::lost`](crate::Guard::lost).
    pub(crate) async fn lost(&self) {
        self.watch(Self::is_lost, Self::until).await;
    }

    /// See [`Guard::in_jeopardy`](crate::Guard::in_jeopardy).
    pub(crate) async fn in_jeopardy(&self) {
        self.watch(|term| term.is_lost() || term.is_in_jeopardy(), Self::jeopardy).await;
    }

    /// When [`is_in_jeopardy`](Self::is_in_jeopardy) will be true, if nothing changes.
    pub(crate) fn jeopardy(&self) -> Option<Duration> {
        let half = self.process.lease.borrow().lasts() / 2;
        self.until().map(|until| until.saturating_sub(half))
    }

    async fn watch(&self, condition: impl Fn(&Self) -> bool, when: impl Fn(&Self) -> Option<Duration>) {
        watch(|| Some(self), condition, when).await;
    }
}

/// Waits until there is no `term`, or for a condition that will be true `when` it says, if nothing changes. Does not
/// keep the term between two looks: its end releases the key.
pub(crate) async fn watch<T: Deref<Target = HeldTerm>>(
    term: impl Fn() -> Option<T>,
    condition: impl Fn(&HeldTerm) -> bool,
    when: impl Fn(&HeldTerm) -> Option<Duration>,
) {
    let Some(mut outlook) = term().map(|term| term.process.look_out()) else { return };
    loop {
        outlook.borrow_and_update();
        let left = match term() {
            Some(term) if !condition(&term) => term.left_until(when(&term)),
            _ => return,
        };
        // Check again, whether something changed or the time is over.
        let _ = timeout(left.max(SHORTEST_SLEEP), outlook.changed()).await;
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

/// A release was refused: its term was lost. A client that shuts down ends its session without waiting for releases in
/// the background; the session takes its keys with it.
fn count_loss(process: &Process) {
    if !process.lease.borrow().closed {
        process.store.database.counters.lost();
    }
}

impl Drop for HeldTerm {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.leave(&self.key, self);
        }
        self.alarm_watchers();
        let (released, freed) = (*self.released.get_mut(), *self.freed.get_mut());
        let (gone, overdue) = (self.is_taken(), self.is_overdue());
        let transferring = *self.transferring.get_mut();
        let lost = !released && !transferring && (gone || overdue);
        let counts_refusal = !lost && !transferring;
        let held = self.since.elapsed();
        tracing::debug!(key = %self.key, token = %self.token, ?held, lost, "the lock is no longer held");
        self.process.store.database.counters.held(held, lost);
        let (process, session, grant) = (Arc::clone(&self.process), self.session, self.grant);
        let (key, token, unclear) = (self.key.clone(), self.token, self.unclear);
        // A key that was lost belongs to another holder, or ends with the session: releasing it would end the term in
        // order, without its delay.
        let releasing = (!released && !freed && !gone).then(|| self.release_span());
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
                    if counts_refusal && matches!(answer, Some(Changed::Refused(_))) {
                        count_loss(&process);
                    }
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
