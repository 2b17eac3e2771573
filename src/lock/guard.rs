//! A key that is held, and how its holder learns that it is not held any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::client::Shared;
use super::{Changed, Key, LockError, SessionId, Token, monotonic};

/// The longest that [`Guard::lost`] sleeps at once: timers stand still while the machine does, the belief does not.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

const REASON: &str = "released by its holder";

/// One term of an owner. The last guard that lets go of it releases the key.
pub(super) struct Term {
    shared: Arc<Shared>,
    session: SessionId,
    key: Key,
    token: Token,
    /// For ever, once it was seen.
    lost: AtomicBool,
    released: AtomicBool,
}

impl Term {
    pub(super) fn new(shared: Arc<Shared>, session: SessionId, key: Key, token: Token) -> Self {
        Self { shared, session, key, token, lost: AtomicBool::new(false), released: AtomicBool::new(false) }
    }

    fn is_lost(&self) -> bool {
        if !self.lost.load(Ordering::Relaxed) && !self.shared.lease.borrow().covers(self.session) {
            self.lost.store(true, Ordering::Relaxed);
        }
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        if *self.released.get_mut() {
            return;
        }
        let (shared, session, key, token) =
            (Arc::clone(&self.shared), self.session, self.key.clone(), self.token);
        self.shared.runtime.spawn(async move {
            shared.insist(session, async || shared.store.release(session, &key, token, REASON).await).await;
        });
    }
}

/// Proof that a key is held. Dropping it releases the key, in the background; [`release`](Self::release) waits until that
/// is done. An owner that took the key more than once holds it until the last guard is gone.
#[must_use = "dropping the guard releases the key"]
pub struct Guard {
    term: Arc<Term>,
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

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Term { key, token, .. } = &*self.term;
        f.debug_struct("Guard").field("key", key).field("token", token).finish_non_exhaustive()
    }
}

impl Guard {
    pub(super) fn new(term: Arc<Term>) -> Self {
        Self { term }
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
        let Some(mut term) = Arc::into_inner(self.term) else { return Ok(Released::StillHeld) };
        if term.is_lost() {
            // Dropping the term tidies up, if the session is still there.
            return Ok(Released::WasLost);
        }
        let answer = term.shared.store.release(term.session, &term.key, term.token, REASON).await?;
        *term.released.get_mut() = true;
        Ok(match answer {
            Changed::Done => Released::Done,
            Changed::Refused(_) => Released::WasLost,
        })
    }
}
