//! Compares what a process holds with what the database stores.
//!
//! A living session does not lose a key, with two exceptions: a person releases it by force, or the database has lost
//! its last commits and with them the grant. The heartbeat shows both: the session's count of revoked keys has grown,
//! or the era has changed. In addition, everything is compared at a slow interval.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::db::database::CHUNK;
use crate::db::statement::{Bind, Statement, get};
use crate::session::row::era_of;
use crate::{GrantId, Key, LockError, SessionId, Store, Token, protocol::EraId};

const HELD: Statement = Statement { name: "what is held", sql: include_str!("../sql/held.sql") };

/// The reason of a release after the longest time that a key may be held.
pub(crate) const HELD_TOO_LONG: &str = "held for as long as it may be";

/// A term that is held.
pub(crate) trait Term: Send + Sync {
    /// The columns of its row by which it is compared.
    fn row(&self) -> TermRow;

    /// Ends it, because its session or the database shows that it is over. False if its holder released it, or it was
    /// lost before.
    fn end(&self) -> bool;

    /// Whether it has lasted for too long, and its key must be released.
    fn is_to_be_freed(&self) -> bool;

    /// The key was released because of that, whatever its guards do.
    fn freed(&self);
}

/// What a row shows of a term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TermRow {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) session: SessionId,
}

/// The terms that are held, by their grant. This does not keep them alive: dropping a term releases its key.
#[derive(Default)]
pub(crate) struct Terms {
    all: Mutex<HashMap<GrantId, Weak<dyn Term>>>,
    doubt: Notify,
}

impl Terms {
    /// Adds a term. It [leaves](Self::leave) by itself.
    pub(crate) fn enter(&self, grant: GrantId, term: Weak<dyn Term>) {
        self.all.lock().insert(grant, term);
    }

    /// Whether nothing is held, and no release is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    /// Removes a term that is over for its holder.
    pub(crate) fn leave(&self, grant: GrantId) {
        self.all.lock().remove(&grant);
    }

    /// Ends all of them, because their session ends.
    pub(crate) fn end(&self) {
        let all: Vec<_> = self.all.lock().values().filter_map(Weak::upgrade).collect();
        for term in all {
            term.end();
        }
    }

    /// Asks for a comparison soon.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Completes when a comparison is asked for, at the latest after this time.
    pub(crate) async fn doubted(&self, latest: Duration) {
        let _ = timeout(latest, self.doubt.notified()).await;
    }

    /// Terms that have lasted for too long, and whose keys must be released.
    pub(crate) fn to_be_freed(&self) -> Vec<Arc<dyn Term>> {
        // Outside of the mutex: the last reference to a term locks it when it is dropped.
        let all: Vec<_> = self.all.lock().values().filter_map(Weak::upgrade).collect();
        all.into_iter().filter(|term| term.is_to_be_freed()).collect()
    }

    /// Releases the key of such a term. If that fails, the next heartbeat repeats it.
    pub(crate) async fn free(store: &Store, term: &dyn Term) {
        let TermRow { key, token, session } = term.row();
        match store.release(session, &key, token, HELD_TOO_LONG).await {
            Ok(_) => {
                tracing::warn!(%key, %token, "the lock was {HELD_TOO_LONG}; it is released");
                term.freed();
            }
            Err(error) => tracing::debug!(%key, %error, "the lock was not released; trying again"),
        }
    }

    /// Ends the terms that the database does not have, or that it shows as over. Returns whether there were any. Fails
    /// if another server answers than the one that sent the heartbeat of this era.
    pub(crate) async fn reconcile(&self, store: &Store, era: EraId) -> Result<bool, LockError> {
        // All of them were granted, and so committed, before this query is sent.
        let all: Vec<_> = {
            let held: Vec<_> = self.all.lock().values().filter_map(Weak::upgrade).collect();
            held.iter().map(|term| (Arc::downgrade(term), term.row())).collect()
        };
        let mut keys: Vec<_> = all.iter().map(|(_, held)| held.key.clone()).collect();
        keys.sort();
        keys.dedup();
        let rows = store.held(&keys, era).await?;
        let mut lost = false;
        for (term, held) in &all {
            if rows.get(held.key.as_str()) != Some(&(held.token.get(), held.session.as_uuid()))
                && term.upgrade().is_some_and(|term| term.end())
            {
                tracing::warn!(key = %held.key, token = %held.token, "the lock was taken away");
                lost = true;
            }
        }
        Ok(lost)
    }
}

impl Store {
    /// Tokens and sessions of those keys that are held, from a server that is in this era.
    async fn held(&self, keys: &[Key], era: EraId) -> Result<HashMap<String, (i64, uuid::Uuid)>, LockError> {
        let mut held = HashMap::new();
        for chunk in keys.chunks(CHUNK) {
            let keys: Vec<_> = chunk.iter().map(Key::as_str).collect();
            for row in &self.database.rows(HELD, Bind::new().with(keys)?).await? {
                if era_of(row)? != era {
                    // New connections may lead to the heartbeat's server.
                    self.database.pool.forget();
                    let detail = "another server answered than the one with the session".to_owned();
                    return Err(LockError::Interrupted { statement: HELD.name, detail });
                }
                if let Some(key) = get(row, "key")? {
                    held.insert(key, (get(row, "token")?, get(row, "session")?));
                }
            }
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// A term whose holder lets go of it while it is being looked at.
    struct Ending {
        terms: Arc<Terms>,
        grant: GrantId,
        holder: Mutex<Option<Arc<Self>>>,
    }

    impl Term for Ending {
        fn row(&self) -> TermRow {
            unreachable!("it is not compared")
        }

        fn end(&self) -> bool {
            false
        }

        fn is_to_be_freed(&self) -> bool {
            drop(self.holder.lock().take());
            false
        }

        fn freed(&self) {}
    }

    impl Drop for Ending {
        fn drop(&mut self) {
            self.terms.leave(self.grant);
        }
    }

    #[test]
    fn the_last_reference_to_a_term_may_be_dropped_while_all_are_looked_at() {
        let (terms, grant) = (Arc::new(Terms::default()), GrantId::new());
        let term = Arc::new(Ending { terms: Arc::clone(&terms), grant, holder: Mutex::default() });
        let weak = Arc::downgrade(&term);
        terms.enter(grant, weak);
        *term.holder.lock() = Some(Arc::clone(&term));
        drop(term);
        let looking = thread::spawn({
            let terms = Arc::clone(&terms);
            move || terms.to_be_freed().len()
        });
        let begun = Instant::now();
        while !looking.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it waits for itself");
            thread::yield_now();
        }
        assert_eq!(looking.join().expect("it has not panicked"), 0);
        assert!(terms.is_empty());
    }
}
