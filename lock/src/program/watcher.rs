//! Observing a held key apart from its guard.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::program::held_term::{HeldTerm, watch};
use crate::{Guard, Key, Token};

/// Observes a key that is held, apart from its [`Guard`]: in another task, or in a part of the program that has to stop
/// when the key is lost. It keeps neither the key nor the client: the key counts as lost from the moment when the last
/// guard is released or dropped, and while that guard is being transferred.
///
/// ```no_run
/// # async fn example(guard: leadergroup_lock::Guard) {
/// let watcher = guard.watcher();
/// tokio::spawn(async move {
///     watcher.lost().await;
///     eprintln!("term {} is over", watcher.token());
/// });
/// # }
/// ```
#[derive(Clone)]
pub struct Watcher {
    term: Weak<HeldTerm>,
    key: Key,
    token: Token,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, token, .. } = self;
        f.debug_struct("Watcher").field("key", key).field("token", token).finish_non_exhaustive()
    }
}

impl Guard {
    /// An observer of the key, for other tasks.
    pub fn watcher(&self) -> Watcher {
        let term = self.term();
        term.watched.store(true, Ordering::Relaxed);
        Watcher { term: Arc::downgrade(&term), key: term.key.clone(), token: term.token }
    }
}

impl Watcher {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fencing token of the term.
    pub fn token(&self) -> Token {
        self.token
    }

    /// As [`Guard::is_lost`]; also true once the key is being released.
    pub fn is_lost(&self) -> bool {
        self.guarded().is_none_or(|term| term.is_lost())
    }

    /// As [`Guard::held_until`]; `None` once the key is being released.
    pub fn held_until(&self) -> Option<Duration> {
        self.guarded().and_then(|term| term.until())
    }

    /// As [`Guard::remaining`]; zero once the key is being released.
    pub fn remaining(&self) -> Duration {
        self.guarded().map(|term| term.remaining()).unwrap_or_default()
    }

    /// As [`Guard::lost`]; also completes when the key is being released.
    pub async fn lost(&self) {
        watch(|| self.guarded(), HeldTerm::is_lost, HeldTerm::until).await;
    }

    /// The term, while it has a guard that nobody has begun to release.
    fn guarded(&self) -> Option<Arc<HeldTerm>> {
        self.term.upgrade().filter(|term| term.guards.load(Ordering::Acquire) > 0)
    }

    /// As [`Guard::in_jeopardy`]; also completes when the key is being released.
    pub async fn in_jeopardy(&self) {
        watch(|| self.guarded(), |term| term.is_lost() || term.is_in_jeopardy(), HeldTerm::jeopardy).await;
    }
}
