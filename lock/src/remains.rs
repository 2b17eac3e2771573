//! What is left of wishes that nobody has any more: a client finds it, and gives it up.
//!
//! Whoever drops a wish says so to the database, but on another connection. What was asked before may still be under way,
//! and take effect after that: a packet that was held up, or a commit that took its time. The session would then hold, or
//! wait for, a key of which nobody in this process knows, and keep it from everybody else for as long as it lives. So a
//! client asks what its session has. A request is noted here before it is sent for the first time, until either its term
//! is known or nobody wants it any more; it never comes back. Hence what the database knows, and afterwards neither list
//! does, is nobody's.
//!
//! The same goes for a key that was released. The commit of a release does not wait for the disk, and a crash of the server
//! may take it back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::client::Shared;
use super::doubt::SLOW_LOOK;
use super::waiting::portion;
use super::{GrantId, LockError};

/// The requests that somebody in this process may still get an answer to.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// With what was heard of them since they were last asked about.
    all: Mutex<HashMap<uuid::Uuid, bool>>,
    unclear: Notify,
    /// Whether there was any release that does not wait for the disk.
    at_risk: AtomicBool,
    crashed: Notify,
}

impl Wishes {
    /// Before it is sent. Whatever was said of it before is answered by what is asked now.
    pub(super) fn asks(&self, request: GrantId) {
        self.all().insert(request.as_uuid(), false);
    }

    /// Nobody waits for an answer any more. `unclear`: it may still take effect.
    pub(super) fn leave(&self, request: GrantId, unclear: bool) {
        self.all().remove(&request.as_uuid());
        if unclear {
            self.unclear.notify_one();
        }
    }

    /// Somebody has said something about this request.
    pub(super) fn heard_of(&self, request: uuid::Uuid) {
        if let Some(heard) = self.all().get_mut(&request) {
            *heard = true;
        }
    }

    /// Whether somebody has said something about it since it was last asked about.
    pub(super) fn was_heard_of(&self, request: GrantId) -> bool {
        self.all().get(&request.as_uuid()).copied().unwrap_or(false)
    }

    /// From now on a crash may take a release back.
    pub(super) fn releases(&self) {
        self.at_risk.store(true, Ordering::Relaxed);
    }

    /// Connections broke, so the server may have crashed; they work again.
    pub(super) fn may_have_crashed(&self) {
        if self.at_risk.load(Ordering::Relaxed) {
            self.crashed.notify_one();
        }
    }

    fn known(&self) -> Vec<uuid::Uuid> {
        self.all().keys().copied().collect()
    }

    fn knows(&self, request: GrantId) -> bool {
        self.all().contains_key(&request.as_uuid())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<uuid::Uuid, bool>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs for as long as there is a client. After a wish whose outcome is not clear it looks when the statement must have
/// ended, and then after twice as long each time, since not everything that can come late ends with the statement. After a
/// crash it looks once, and not at the same moment as everybody else.
pub(super) async fn clear(shared: Arc<Shared>) {
    let limit = shared.store.pool.limit().min(SLOW_LOOK);
    let mut pause = SLOW_LOOK;
    loop {
        tokio::select! {
            () = shared.wishes.unclear.notified() => {
                pause = limit;
                sleep(pause).await;
            }
            () = shared.wishes.crashed.notified() => sleep(limit.mul_f64(portion())).await,
            () = sleep(pause) => {}
        }
        match look(&shared).await {
            Ok(()) => pause = (pause * 2).min(SLOW_LOOK),
            Err(error) => {
                tracing::debug!(%error, "what is left of old wishes could not be looked for; trying again");
                pause = limit;
            }
        }
    }
}

/// Gives up what nobody knows of.
async fn look(shared: &Shared) -> Result<(), LockError> {
    let lease = *shared.lease.borrow();
    if !lease.covers(lease.session) {
        // All of it goes with the session.
        return Ok(());
    }
    // Wishes first: one that is granted is in the other list before it leaves this one.
    let mut known = shared.wishes.known();
    known.extend(shared.terms.known());
    let found = shared.store.own_requests(lease.session, known).await?;
    for (key, request) in found {
        if shared.wishes.knows(request) || shared.terms.knows(request) {
            continue;
        }
        tracing::warn!(%key, "the session has the lock, or a place in its queue, and nobody here knows of it; it is given up");
        shared.store.give_up(lease.session, &key, request).await?;
    }
    Ok(())
}
