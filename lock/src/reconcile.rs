//! Compares the keys that a process holds by its own state with the rows in the database.
//!
//! A live session loses a key in two cases only: a person takes it away by force, or the database lost its last
//! commits. The heartbeat shows both: the session's count of revoked keys has grown, or the era has changed. In
//! addition there is a slow comparison of everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::guard::Term;
use crate::pool::Statement;
use crate::process::Process;
use crate::session::era_of;
use crate::store::{Bind, CHUNK, get};
use crate::{EraId, GrantId, LockError, Store};

const HELD: Statement = Statement { name: "what is held", sql: include_str!("sql/held.sql") };

/// The longest time without a look.
const SLOW_LOOK: Duration = Duration::from_mins(2);
/// Between two looks, even if there are new doubts.
const BREATH: Duration = Duration::from_millis(100);

/// The terms that are held, by their grant. Does not keep them alive: their end is the release.
#[derive(Default)]
pub(crate) struct Terms {
    all: Mutex<HashMap<GrantId, Weak<Term>>>,
    doubt: Notify,
}

impl Terms {
    /// From now on it is looked after. It [leaves](Self::leave) by itself.
    pub(crate) fn enter(&self, grant: GrantId, term: &Arc<Term>) {
        self.all().insert(grant, Arc::downgrade(term));
    }

    /// The term is over for its holder.
    pub(crate) fn leave(&self, grant: GrantId) {
        self.all().remove(&grant);
    }

    /// Look soon.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Terms that have reached their maximum hold time, whose keys must be released.
    pub(crate) fn to_be_freed(&self) -> Vec<Arc<Term>> {
        self.all().values().filter_map(Weak::upgrade).filter(|term| term.is_to_be_freed()).collect()
    }

    /// Ends the terms that are missing or over in the database, and returns whether there were any. Only the server
    /// that answered the heartbeat of this era can tell.
    pub(crate) async fn reconcile(&self, store: &Store, era: EraId) -> Result<bool, LockError> {
        // All of them were granted, and so committed, before this question is sent.
        let all: Vec<_> = self.all().values().filter_map(Weak::upgrade).collect();
        let mut keys: Vec<_> = all.iter().map(|term| term.key.clone()).collect();
        keys.sort();
        keys.dedup();
        let all: Vec<_> = all.iter().map(|term| (Arc::downgrade(term), Held::of(term))).collect();
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

    fn all(&self) -> MutexGuard<'_, HashMap<GrantId, Weak<Term>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of a term in this process.
struct Held {
    key: crate::Key,
    token: crate::Token,
    session: crate::SessionId,
}

impl Held {
    fn of(term: &Term) -> Self {
        Self { key: term.key.clone(), token: term.token, session: term.session }
    }
}

impl Store {
    /// Tokens and sessions of the held keys, according to the server of this era.
    async fn held(
        &self,
        keys: &[crate::Key],
        era: EraId,
    ) -> Result<HashMap<String, (i64, uuid::Uuid)>, LockError> {
        let mut held = HashMap::new();
        for chunk in keys.chunks(CHUNK) {
            let keys: Vec<_> = chunk.iter().map(crate::Key::as_str).collect();
            for row in &self.rows(HELD, Bind::new().with(keys)?).await? {
                if era_of(row)? != era {
                    // New connections may lead to where the heartbeat's does.
                    self.pool.forget();
                    let detail =
                        "another server answered than the one that the session is kept on".to_owned();
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

/// Looks whenever there is a doubt, and now and then without. Runs until it is dropped.
pub(crate) async fn reconcile(process: Arc<Process>) {
    loop {
        let _ = timeout(SLOW_LOOK, process.terms.doubt.notified()).await;
        loop {
            let era = process.lease.borrow().era;
            match process.terms.reconcile(&process.store, era).await {
                // Those that wait for a loss look again.
                Ok(true) => break process.lease.send_modify(|_| {}),
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "the held keys could not be checked; trying again");
                    sleep(process.config.retry_interval).await;
                }
            }
        }
        sleep(BREATH).await;
    }
}
