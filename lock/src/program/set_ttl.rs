//! Changing the ttl of a session that lives.

use std::time::Duration;

use crate::session::process::Process;
use crate::session::settings::check;
use crate::{LockError, Store};

impl Process {
    pub(crate) fn wanted_ttl(&self) -> Duration {
        *self.ttl.lock()
    }

    /// Changes the ttl that the process asks for, and requests it once. If that fails, the heartbeat repeats it.
    pub(crate) async fn set_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        check(ttl, self.config.retry_interval)?;
        let _one_at_a_time = self.changing_ttl.lock().await;
        *self.ttl.lock() = ttl;
        self.ask_for_ttl(&self.store, ttl).await
    }

    /// The lease is never longer than the ttl in the row allows, whichever of the two ttls the row has at the moment.
    async fn ask_for_ttl(&self, store: &Store, ttl: Duration) -> Result<(), LockError> {
        let session = self.lease.borrow().session;
        self.believe_at_most(ttl);
        let attempt = self.now();
        // A dead session is replaced by one with the wanted ttl.
        if let Some((beat, era)) = store.change_ttl(session, ttl).await? {
            self.lease.send_modify(|lease| {
                if lease.covers(session, self.now()) {
                    if lease.era == era {
                        lease.beat = lease.beat.max(beat);
                    }
                    lease.set_ttl(ttl);
                    lease.renew(session, attempt, era, self.now());
                }
            });
        }
        Ok(())
    }

    pub(crate) fn believe_at_most(&self, ttl: Duration) {
        self.lease.send_if_modified(|lease| {
            let shorter = ttl.saturating_sub(crate::session::lease::margin(ttl)) < lease.lasts();
            if shorter {
                lease.set_ttl(ttl);
            }
            shorter
        });
    }

    /// Repeats a change of the ttl that failed, or that the database lost.
    pub(crate) async fn repair_ttl(&self, store: &Store) {
        // If it is being changed at this moment, there is nothing to do.
        let Ok(_one_at_a_time) = self.changing_ttl.try_lock() else { return };
        if let Err(error) = self.ask_for_ttl(store, self.wanted_ttl()).await {
            tracing::debug!(%error, "the ttl could not be changed; trying again");
        }
    }
}
