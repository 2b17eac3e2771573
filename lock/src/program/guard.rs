//! Guards: keys that are held, and how their holders learn of a loss.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::program::held_term::{HeldTerm, RELEASED, Released};
use crate::program::trace::{Traced, within};
use crate::{ClientError, Key, LockError, Refusal, Successor, Token, protocol::Transfer};

const TRANSFERRED: &str = "transferred by its holder";

/// Proof that a key is held. Dropping it releases the key in the background; [`release`](Self::release) waits until
/// that is done. A [reentrant](crate::ClientConfig::reentrant) holder that took the key more than once holds it until
/// the last guard is dropped.
///
/// A guard does not keep its client alive: when the last clone of the [`Client`](crate::Client) is dropped, heartbeats
/// stop and the key is lost. Keep a client for as long as its guards.
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
#[non_exhaustive]
pub enum Transferred<G = Guard> {
    /// The successor holds the key.
    Done,
    /// No living waiter matches.
    NotWaiting(G),
    /// The holder has other guards for the key.
    StillHeld(G),
    /// Fenced transactions of this term are still under way, or the database is in quarantine after a failover: try
    /// again later.
    Busy(G),
    /// It was lost before: others may have held it since.
    WasLost,
}

impl<G> Transferred<G> {
    /// The same outcome with another kind of guard.
    pub(crate) fn map<H>(self, guard: impl FnOnce(G) -> H) -> Transferred<H> {
        match self {
            Self::Done => Transferred::Done,
            Self::NotWaiting(held) => Transferred::NotWaiting(guard(held)),
            Self::StillHeld(held) => Transferred::StillHeld(guard(held)),
            Self::Busy(held) => Transferred::Busy(guard(held)),
            Self::WasLost => Transferred::WasLost,
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

    /// Like [`lost`](Self::lost), and returns the error.
    pub(crate) async fn wait_for_loss(&self) -> ClientError {
        loop {
            self.lost().await;
            if let Some(loss) = self.term.loss() {
                return loss;
            }
        }
    }

    /// Ends work that has been done under the key, and releases it. An error if the key was lost before that. A release
    /// that fails is repeated in the background.
    pub(crate) async fn finish(self) -> Result<(), ClientError> {
        let term = self.term();
        if let Some(loss) = term.loss() {
            return Err(loss);
        }
        match self.release().await {
            Ok(Released::WasLost) => Err(term.loss().unwrap_or_else(|| term.lost_ago(Duration::ZERO))),
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::debug!(key = %term.key, %error, "the lock was not released; trying again");
                Ok(())
            }
        }
    }

    /// Until when the key is certainly held, by the store's [clock](crate::Store::clock), as known at this moment;
    /// every heartbeat extends it. Others can have the key a fifth of the ttl later. `None` once it is lost.
    pub fn held_until(&self) -> Option<Duration> {
        self.term.until()
    }

    /// For how long the key is certainly held, as known at this moment; zero once it is lost. See
    /// [`held_until`](Self::held_until).
    pub fn remaining(&self) -> Duration {
        self.term.remaining()
    }

    /// Completes when the key is lost: the session is dead; its heartbeats have failed for so long that others may soon
    /// take the key; the key was released by force; or [`max_hold`](crate::ClientConfig::max_hold) has passed. If
    /// heartbeats failed, this comes a fifth of the ttl before anyone else can have the key: time to stop the work.
    pub async fn lost(&self) {
        self.term.lost().await;
    }

    /// Completes when the key is about to be lost: less than half of the lease is left because heartbeats fail, or
    /// little is left of [`max_hold`](crate::ClientConfig::max_hold). This is the time to save work; the key may
    /// recover. Also completes when the key is lost.
    pub async fn in_jeopardy(&self) {
        self.term.in_jeopardy().await;
    }

    /// Releases the key and waits until it is done; the next waiter then holds it. After an error, the outcome is
    /// unknown: the release is repeated in the background.
    pub async fn release(self) -> Result<Released, LockError> {
        within(self.term.release_span(), self.let_go()).await
    }

    async fn let_go(mut self) -> Result<Released, LockError> {
        self.counted = false;
        if self.term.guards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(Released::StillHeld);
        }
        let term = &self.term;
        term.alarm_watchers();
        if term.is_lost() {
            return Ok(Released::WasLost);
        }
        let answer = term.process.store.release(term.session, &term.key, term.token, RELEASED).await?;
        Ok(term.note_release(answer.into()))
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
        within(self.term.transfer_span(successor), self.give_to(successor)).await
    }

    async fn give_to(mut self, successor: Successor<'_>) -> Result<Transferred, LockError> {
        // From now on, this holder's tries cannot share the term.
        if self.term.guards.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Ok(Transferred::StillHeld(self));
        }
        self.counted = false;
        let term = &self.term;
        term.alarm_watchers();
        if term.is_lost() {
            return Ok(Transferred::WasLost);
        }
        let store = &term.process.store;
        term.transferring.store(true, Ordering::Relaxed);
        let answer = store.transfer(term.session, &term.key, term.token, successor, TRANSFERRED).await?;
        let unchanged = match answer {
            Transfer::NotWaiting => Transferred::NotWaiting,
            Transfer::Refused(Refusal::Busy) => Transferred::Busy,
            Transfer::Done | Transfer::Refused(_) => {
                let done = answer == Transfer::Done;
                let _ = term.note_release(if done { Released::Done } else { Released::WasLost });
                return Ok(if done { Transferred::Done } else { Transferred::WasLost });
            }
        };
        term.transferring.store(false, Ordering::Relaxed);
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
