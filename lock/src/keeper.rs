//! The background task of a client: keeps its session alive, and finds out which others are not.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::client::Shared;
use super::doubt::look;
use super::tidy::is_our_turn;
use super::{Beat, Belief, Epoch, LockError, Observer, SessionId, Settler, Store, monotonic};

/// The session as its holders see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) session: SessionId,
    pub(super) belief: Belief,
    /// The database's history as last heard of.
    pub(super) epoch: Epoch,
    /// Whether all that is held is known to that history. Until then nothing that it says renews the belief.
    compared: bool,
    /// The client was shut down: there will be no other session.
    pub(super) closed: bool,
}

impl Lease {
    /// Whether what was taken by `session` is surely still held.
    pub(super) fn covers(&self, session: SessionId) -> bool {
        self.session == session && self.belief.holds(monotonic())
    }

    /// Whether it is to be asked for locks: it may be gone, but there is no other one.
    pub(super) fn serves(&self, session: SessionId) -> bool {
        self.session == session && !self.closed
    }

    /// The session is known to be gone.
    fn end(&mut self, session: SessionId) {
        if self.session == session {
            self.belief.lost();
        }
    }

    /// A heartbeat that was sent at `attempt` was answered in this history. An answer that comes after the belief ended is
    /// too late: the guards have said that they are lost. Whether it counted.
    fn renewed(&mut self, session: SessionId, attempt: Duration, epoch: Epoch) -> bool {
        let counts = self.covers(session) && self.compared && self.epoch == epoch;
        if counts {
            self.belief.renewed(attempt);
        }
        counts
    }
}

impl Shared {
    /// Tries until it is done. Once the session is gone, or nobody believes in it any more, there is nothing left to do: it is
    /// not kept alive then, and whatever it has goes with it.
    pub(super) async fn insist<T, F>(&self, session: SessionId, action: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, LockError>>,
    {
        while self.lease.borrow().session == session {
            match action().await {
                Ok(done) => return Some(done),
                Err(error) if !self.lease.borrow().covers(session) => {
                    tracing::debug!(%error, "a key was not given up; it goes with the session");
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%error, "giving a key up; trying again");
                    sleep(self.config.retry_interval).await;
                }
            }
        }
        None
    }
}

/// Registers a session.
pub(super) async fn begin(store: &Store, name: &str, ttl: Duration) -> Result<Lease, LockError> {
    let attempt = monotonic();
    let (session, epoch) = store.register_in(name, ttl).await?;
    let mut belief = Belief::new(ttl, margin(ttl));
    belief.renewed(attempt);
    Ok(Lease { session, belief, epoch, compared: true, closed: false })
}

/// Clocks that run at different rates, and the time that it takes to notice: a fifth, never less than the timers' grain.
fn margin(ttl: Duration) -> Duration {
    (ttl / 5).max(Duration::from_millis(10))
}

/// The keeper looks at every interval; it must have three goes within the ttl.
pub(super) fn check(ttl: Duration, retry_interval: Duration) -> Result<(), LockError> {
    if !retry_interval.is_zero() && retry_interval.checked_mul(3).is_some_and(|three| three <= ttl) {
        return Ok(());
    }
    let problem = format!(
        "must be above zero, and at most a third of ttl ({retry_interval:?} with a ttl of {ttl:?}); choose a longer ttl"
    );
    Err(LockError::Config { key: "retryInterval", problem })
}

impl Shared {
    /// The ttl that is wanted: the session's, but for the moments in which it is being changed.
    fn ttl(&self) -> Duration {
        *self.ttl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants another ttl from now on, and asks for it once. If that fails the keeper repeats it.
    pub(super) async fn set_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        check(ttl, self.config.retry_interval)?;
        let _one_at_a_time = self.changing_ttl.lock().await;
        *self.ttl.lock().unwrap_or_else(PoisonError::into_inner) = ttl;
        self.ask_for_ttl(ttl).await
    }

    /// The belief is never longer than what the row can say, whichever of the two ttls it says at the moment.
    async fn ask_for_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        let session = self.lease.borrow().session;
        self.believe_at_most(ttl);
        let attempt = monotonic();
        // A session that is dead is replaced by one with the ttl that is wanted.
        if let Some(epoch) = self.store.set_ttl_in(session, ttl).await? {
            self.lease.send_modify(|lease| {
                if lease.covers(session) {
                    lease.belief.set_ttl(ttl, margin(ttl));
                    lease.renewed(session, attempt, epoch);
                }
            });
        }
        Ok(())
    }

    fn believe_at_most(&self, ttl: Duration) {
        self.lease.send_if_modified(|lease| {
            let shorter = ttl.saturating_sub(margin(ttl)) < lease.belief.lasts();
            if shorter {
                lease.belief.set_ttl(ttl, margin(ttl));
            }
            shorter
        });
    }

    /// What the row says is what others go by: a change of the ttl may have failed, or been lost with the database.
    async fn compare_ttl(&self, own: SessionId, beat: &Beat) {
        let Some(row) = beat.sessions.iter().find(|session| session.id == own) else { return };
        if row.ttl == self.ttl() {
            return;
        }
        // If it is being changed at this moment there is nothing to do.
        let Ok(_one_at_a_time) = self.changing_ttl.try_lock() else { return };
        self.believe_at_most(row.ttl);
        if let Err(error) = self.ask_for_ttl(self.ttl()).await {
            tracing::debug!(%error, "the ttl is not the one that is wanted; trying again");
        }
    }

    /// Of the commits that the database lost, some may have been grants: in a new history everything that is held is looked
    /// at before the belief is renewed. If that fails the next heartbeat brings it up again.
    async fn compare(&self, epoch: Epoch) {
        if self.lease.borrow().compared && self.lease.borrow().epoch == epoch {
            return;
        }
        self.wishes.may_have_crashed();
        // First, so that a grant of the former history whose answer is still to come is not believed in; see `settle`.
        self.lease.send_modify(|lease| (lease.epoch, lease.compared) = (epoch, false));
        match look(self).await {
            Ok(()) => {
                self.lease.send_modify(|lease| lease.compared = true);
            }
            Err(error) => tracing::debug!(%error, "what is held could not be looked at; trying again"),
        }
    }

    /// A session in place of one that is gone.
    async fn begin_anew(&self, session: SessionId) {
        let _one_at_a_time = self.changing_ttl.lock().await;
        match begin(&self.store, &self.config.name, self.ttl()).await {
            Ok(lease) => {
                tracing::warn!(%session, "the session was lost, and all locks with it; a new one begins");
                self.lease.send_if_modified(|now| {
                    if !now.closed {
                        *now = lease;
                    }
                    !now.closed
                });
            }
            Err(error) => tracing::warn!(%error, "no new session; trying again"),
        }
    }
}

impl Shared {
    /// What an answer gives rise to, besides the next heartbeat, which does not wait for it.
    async fn see_to(&self, own: SessionId, beat: Beat, expired: Vec<(SessionId, u64)>, settled: bool) {
        match self.store.mark_dead(&expired).await {
            Ok(dead) if !dead.is_empty() => self.turns.wake_all(),
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a dead session could not be marked; trying again"),
        }
        if settled {
            match self.store.settle(beat.epoch).await {
                Ok(()) => self.turns.wake_all(),
                Err(error) => tracing::debug!(%error, "the era could not be settled; trying again"),
            }
        }
        self.compare_ttl(own, &beat).await;
    }
}

/// Runs for as long as there is a client.
pub(super) async fn keep(shared: Arc<Shared>) {
    let interval = shared.config.retry_interval;
    let mut observer = Observer::new(interval);
    let mut settler = Settler::new(interval);
    let mut attempt = monotonic();
    let mut planned = attempt + interval;
    // One at a time. They end with this task.
    let mut chores = JoinSet::new();
    let mut broke = false;
    loop {
        // Asked for once when a session may have expired; should there be no answer, the regular questions go on.
        let expiry = observer.next_expiry().filter(|at| *at > attempt);
        let due = expiry.map_or(planned, |at| at.min(planned));
        sleep(due.saturating_sub(monotonic()).min(interval)).await;
        let session = shared.lease.borrow().session;
        attempt = monotonic();
        match shared.store.beat(session).await {
            Ok(beat) if beat.alive && shared.lease.borrow().covers(session) => {
                let answered = monotonic();
                if std::mem::take(&mut broke) {
                    shared.wishes.may_have_crashed();
                }
                shared.compare(beat.epoch).await;
                shared.lease.send_if_modified(|lease| lease.renewed(session, attempt, beat.epoch));
                shared.store.counters.heartbeat(answered.saturating_sub(due));
                shared.tidies.store(is_our_turn(&beat), Ordering::Relaxed);
                let expired = observer.observe(answered, attempt, &beat);
                let settled = settler.observe(answered, attempt, &beat);
                while chores.try_join_next().is_some() {}
                if chores.is_empty() {
                    let shared = Arc::clone(&shared);
                    chores.spawn(async move { shared.see_to(session, beat, expired, settled).await });
                }
            }
            Ok(beat) => {
                // Before anything that may take its time: nothing that was held is, and the guards have to know.
                shared.lease.send_modify(|lease| lease.end(session));
                if beat.alive {
                    // Others may have what it held sooner than after its ttl, but not before the delay that was asked for.
                    let _ = shared.store.abandon(session).await;
                }
                shared.begin_anew(session).await;
            }
            Err(error) => {
                broke = true;
                tracing::debug!(%error, "no heartbeat; trying again");
            }
        }
        planned = attempt + interval;
    }
}
