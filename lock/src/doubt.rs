//! A client that has reason to doubt looks whether it still holds what it believes to hold.
//!
//! Nobody takes a key from a living session, but for two cases: a person does it by force, and a database that lost its
//! last commits may not know of it. The first is told by a word, which may be missed, so there is a slow look at everything
//! besides. The second shows in the heartbeat's answer, and the keeper looks before it believes that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::client::Shared;
use super::guard::Term;
use super::{GrantId, Key, LockError, LockRow, SessionId, Token};

/// The longest time without a look.
pub(super) const SLOW_LOOK: Duration = Duration::from_mins(2);
/// Between two looks, even if there are new doubts.
const BREATH: Duration = Duration::from_millis(100);

/// The terms that a client's owners hold, by the request that they were granted to.
#[derive(Default)]
pub(super) struct Terms {
    all: Mutex<HashMap<uuid::Uuid, Weak<Term>>>,
    doubt: Notify,
}

impl Terms {
    /// From now on it is looked after. It [leaves](Self::leave) by itself.
    pub(super) fn enter(&self, request: GrantId, term: &Arc<Term>) {
        self.all().insert(request.as_uuid(), Arc::downgrade(term));
    }

    /// The term is over for its owner.
    pub(super) fn leave(&self, request: GrantId) {
        self.all().remove(&request.as_uuid());
    }

    /// Somebody has said something about this request.
    pub(super) fn heard_of(&self, request: uuid::Uuid) {
        if self.all().contains_key(&request) {
            self.doubt();
        }
    }

    /// Look soon.
    pub(super) fn doubt(&self) {
        self.doubt.notify_one();
    }

    pub(super) fn known(&self) -> Vec<uuid::Uuid> {
        self.all().keys().copied().collect()
    }

    pub(super) fn knows(&self, request: GrantId) -> bool {
        self.all().contains_key(&request.as_uuid())
    }

    fn living(&self) -> Vec<Held> {
        let held = |term: Arc<Term>| Held {
            key: term.key.clone(),
            token: term.token,
            session: term.session,
            term: Arc::downgrade(&term),
        };
        self.all().values().filter_map(Weak::upgrade).map(held).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<uuid::Uuid, Weak<Term>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs for as long as there is a client.
pub(super) async fn doubt(shared: Arc<Shared>) {
    loop {
        let _ = timeout(SLOW_LOOK, shared.terms.doubt.notified()).await;
        while let Err(error) = look(&shared).await {
            tracing::debug!(%error, "what is held could not be looked at; trying again");
            tokio::time::sleep(shared.config.retry_interval).await;
        }
        tokio::time::sleep(BREATH).await;
    }
}

/// Ends the terms that the database does not know, or knows to be over.
pub(super) async fn look(shared: &Shared) -> Result<(), LockError> {
    // All of them were granted, and so committed, before this question is sent.
    let all = shared.terms.living();
    let mut keys: Vec<_> = all.iter().map(|held| held.key.clone()).collect();
    keys.sort();
    keys.dedup();
    let rows = shared.store.read_map(&keys).await?;
    let mut lost = false;
    for held in all.iter().filter(|held| !rows.get(&held.key).is_some_and(|row| held.is_so(row))) {
        if held.term.upgrade().is_some_and(|term| term.end()) {
            tracing::warn!(key = %held.key, token = %held.token, "the lock was taken away");
            lost = true;
        }
    }
    if lost {
        // Those who wait for the loss look again.
        shared.lease.send_modify(|_| {});
    }
    Ok(())
}

/// What a term believes. Does not keep it alive: its end is the release.
struct Held {
    key: Key,
    token: Token,
    session: SessionId,
    term: Weak<Term>,
}

impl Held {
    fn is_so(&self, row: &LockRow) -> bool {
        row.token == self.token && row.session == Some(self.session) && row.owner.is_some()
    }
}
