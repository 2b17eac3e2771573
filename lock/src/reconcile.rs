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
use tokio::time::{sleep, timeout};

use crate::database::CHUNK;
use crate::guard::HeldTerm;
use crate::process::Process;
use crate::session::era_of;
use crate::statement::{Bind, Statement, get};
use crate::{EraId, GrantId, LockError, Store};

const HELD: Statement = Statement { name: "what is held", sql: include_str!("sql/held.sql") };

/// The longest time between two comparisons.
const SLOW_LOOK: Duration = Duration::from_mins(2);
/// The shortest time between two comparisons.
const BREATH: Duration = Duration::from_millis(100);

/// The terms that are held, by their grant. This does not keep them alive: dropping a term releases its key.
#[derive(Default)]
pub(crate) struct Terms {
    all: Mutex<HashMap<GrantId, Weak<HeldTerm>>>,
    doubt: Notify,
}

impl Terms {
    /// Adds a term. It [leaves](Self::leave) by itself.
    pub(crate) fn enter(&self, grant: GrantId, term: &Arc<HeldTerm>) {
        self.all.lock().insert(grant, Arc::downgrade(term));
    }

    /// Removes a term that is over for its holder.
    pub(crate) fn leave(&self, grant: GrantId) {
        self.all.lock().remove(&grant);
    }

    /// Asks for a comparison soon.
    pub(crate) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Terms that have lasted for too long, and whose keys must be released.
    pub(crate) fn to_be_freed(&self) -> Vec<Arc<HeldTerm>> {
        self.all.lock().values().filter_map(Weak::upgrade).filter(|term| term.is_to_be_freed()).collect()
    }

    /// Ends the terms that the database does not have, or that it shows as over. Returns whether there were any. Fails
    /// if another server answers than the one that sent the heartbeat of this era.
    pub(crate) async fn reconcile(&self, store: &Store, era: EraId) -> Result<bool, LockError> {
        // All of them were granted, and so committed, before this query is sent.
        let all: Vec<_> = self.all.lock().values().filter_map(Weak::upgrade).collect();
        let mut keys: Vec<_> = all.iter().map(|term| term.key.clone()).collect();
        keys.sort();
        keys.dedup();
        let all: Vec<_> = all.iter().map(|term| (Arc::downgrade(term), HeldKey::of(term))).collect();
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

/// The columns by which a term is compared.
struct HeldKey {
    key: crate::Key,
    token: crate::Token,
    session: crate::SessionId,
}

impl HeldKey {
    fn of(term: &HeldTerm) -> Self {
        Self { key: term.key.clone(), token: term.token, session: term.session }
    }
}

impl Store {
    /// Tokens and sessions of those keys that are held, from a server that is in this era.
    async fn held(
        &self,
        keys: &[crate::Key],
        era: EraId,
    ) -> Result<HashMap<String, (i64, uuid::Uuid)>, LockError> {
        let mut held = HashMap::new();
        for chunk in keys.chunks(CHUNK) {
            let keys: Vec<_> = chunk.iter().map(crate::Key::as_str).collect();
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

/// Compares when asked to, and at a slow interval. Runs until it is dropped.
pub(crate) async fn reconcile(process: Arc<Process>) {
    loop {
        let _ = timeout(SLOW_LOOK, process.terms.doubt.notified()).await;
        loop {
            let era = process.lease.borrow().era;
            match process.terms.reconcile(&process.store, era).await {
                // Makes those that wait for a loss check again.
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
