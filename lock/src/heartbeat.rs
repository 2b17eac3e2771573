//! The heartbeat: the one loop that keeps a session alive, watches others, and marks dead those that have expired. Clients
//! run it for what they hold, controllers for what they have claimed.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::clock::monotonic;
use crate::process::{Process, check, register};
use crate::{Beat, EraId, FailureDetector, LockError, Quarantine, SessionConfig, SessionId, Store};

/// Events that may wait to be received.
const EVENTS: usize = 64;

/// What a controller learns from its session's heartbeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// A heartbeat was answered.
    Beat(BeatEvent),
    /// Other sessions have been marked dead, by this one.
    Died(Vec<SessionId>),
    /// The session is gone: others may have claimed what it had. A new one is registered with the next heartbeat.
    Lost,
    /// The database cannot be used now. An existing session is not lost because of that: either other clients cannot
    /// use the database either, or one of them marks the session dead.
    Failed(LockError),
}

/// A heartbeat that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeatEvent {
    /// The own session.
    pub own: SessionId,
    /// All living peers, the own session included.
    pub peers: Vec<SessionId>,
    /// Those of them that seem to have stopped.
    pub suspects: Vec<SessionId>,
    /// The database may have lost commits: rows must be read again.
    pub era_changed: bool,
    /// How long the answer took.
    pub took: Duration,
    /// How long after its time the heartbeat was answered, if it was a regular one.
    pub lag: Option<Duration>,
}

/// A controller's session, kept alive in the background. Dropping it stops the heartbeat, and others take over after the
/// ttl; [`leave`](Self::leave) hands everything over at once.
pub struct Membership {
    process: Arc<Process>,
    early: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership").field("session", &self.session()).finish_non_exhaustive()
    }
}

impl Membership {
    /// Registers a session and begins to keep it. Its events have to be received: a process that does not take them for 64
    /// heartbeats sends no more, and loses its session.
    pub async fn join(
        store: Store,
        config: SessionConfig,
    ) -> Result<(Self, mpsc::Receiver<SessionEvent>), LockError> {
        let process = Arc::new(Process::register(store.clone(), config).await?);
        let (events, received) = mpsc::channel(EVENTS);
        let early = Arc::new(Notify::new());
        let heartbeat = Heartbeat::new(Arc::clone(&process), store, Arc::clone(&early), Some(events));
        // The first heartbeat tells who else is there.
        early.notify_one();
        let task = tokio::spawn(heartbeat.run());
        Ok((Self { process, early, task }, received))
    }

    /// The present session.
    pub fn session(&self) -> SessionId {
        self.process.lease.borrow().session
    }

    /// Sends a heartbeat now: something has happened that it may show.
    pub fn beat_now(&self) {
        self.early.notify_one();
    }

    /// Ends the session in order: its claims are free at once.
    pub async fn leave(self) -> Result<(), LockError> {
        self.task.abort();
        let session = self.session();
        self.process.close();
        self.process.store.close(session).await
    }
}

/// The state of the loop.
pub(crate) struct Heartbeat {
    process: Arc<Process>,
    /// With connections of its own if the loop runs in a thread of its own.
    store: Store,
    /// A reason to send the next heartbeat early.
    early: Arc<Notify>,
    /// A controller's. Without, the session is a client's.
    events: Option<mpsc::Sender<SessionEvent>>,
    detector: FailureDetector,
    quarantine: Quarantine,
    revoked: u64,
    /// What answers give rise to. One at a time; the next heartbeat does not wait for it. Ends with the loop.
    chores: JoinSet<()>,
}

impl Heartbeat {
    pub(crate) fn new(
        process: Arc<Process>,
        store: Store,
        early: Arc<Notify>,
        events: Option<mpsc::Sender<SessionEvent>>,
    ) -> Self {
        let interval = process.config.retry_interval;
        Self {
            process,
            store,
            early,
            events,
            detector: FailureDetector::new(interval),
            quarantine: Quarantine::new(interval),
            revoked: 0,
            chores: JoinSet::new(),
        }
    }

    /// Runs until the process is closed, or the future is dropped.
    pub(crate) async fn run(mut self) {
        let interval = self.process.config.retry_interval;
        let mut attempt = monotonic();
        let mut planned = attempt + interval;
        let mut lease = self.process.lease.subscribe();
        loop {
            // Asked for once when a session may have expired; should there be no answer, the regular questions go on.
            let expiry = self.detector.next_expiry().filter(|at| *at > attempt);
            let due = expiry.map_or(planned, |at| at.min(planned));
            let mut regular = true;
            tokio::select! {
                () = sleep(due.saturating_sub(monotonic()).min(interval)) => {}
                () = self.early.notified() => regular = false,
                _ = lease.wait_for(|lease| lease.closed) => return,
            }
            attempt = monotonic();
            let lag = regular.then_some(due);
            let session = self.process.lease.borrow().session;
            let watch = self.process.watched.list();
            match self.store.beat(session, &watch).await {
                Ok(beat) => self.answered(beat, attempt, lag).await,
                Err(error) => self.failed(error).await,
            }
            planned = attempt + interval;
        }
    }

    async fn answered(&mut self, beat: Beat, attempt: Duration, due: Option<Duration>) {
        let (session, now) = (beat.own, monotonic());
        let in_time = self.process.covers(session);
        if !beat.alive || !in_time && self.events.is_none() {
            // Before anything that may take time: nothing that was held is, and the guards have to know.
            let mut over = None;
            self.process.lease.send_modify(|lease| {
                over = lease.until().map(|until| until + lease.margin());
                lease.end();
            });
            if let Some(over) = over.filter(|_| beat.alive) {
                // Others may have what it held: not before the delay that was asked for, and no sooner than if they had marked
                // it dead. That is the time that its holders have to stop.
                let store = self.store.clone();
                tokio::spawn(async move {
                    sleep(over.saturating_sub(monotonic())).await;
                    let _ = store.abandon(session).await;
                });
            }
            self.begin_again(session).await;
            return;
        }
        let era_changed = self.reconcile(beat.era).await;
        // What the row says is what others go by.
        self.process.believe_at_most(beat.ttl);
        self.process.lease.send_if_modified(|lease| {
            lease.beat = lease.beat.max(beat.count);
            lease.quarantine = beat.quarantine;
            lease.renew(session, attempt, beat.era, monotonic())
        });
        if std::mem::replace(&mut self.revoked, beat.revoked) != beat.revoked {
            self.process.terms.doubt();
        }
        let lag = due.map(|due| now.saturating_sub(due));
        if let Some(lag) = lag {
            self.process.store.counters.heartbeat(lag);
        }
        let expired = self.detector.observe(now, attempt, &beat);
        let quarantine_is_over = self.quarantine.observe(now, attempt, &beat);
        if self.events.is_some() {
            let suspects: Vec<_> = self.detector.suspects().collect();
            let peers = beat.sessions.iter().filter(|other| other.peer && !other.dead).map(|other| other.id);
            let event = BeatEvent {
                own: session,
                peers: peers.chain([session]).collect(),
                suspects,
                era_changed,
                took: now.saturating_sub(attempt),
                lag,
            };
            self.tell(SessionEvent::Beat(event)).await;
        }
        while self.chores.try_join_next().is_some() {}
        let ttl_differs = beat.ttl != self.process.wanted_ttl();
        let overdue = self.process.terms.to_be_freed();
        if self.chores.is_empty()
            && (!expired.is_empty() || quarantine_is_over || ttl_differs || !overdue.is_empty())
        {
            let (process, store, events) =
                (Arc::clone(&self.process), self.store.clone(), self.events.clone());
            let era = quarantine_is_over.then_some(beat.era);
            self.chores.spawn(async move {
                see_to(&process, &store, events, &expired, era).await;
                for term in overdue {
                    term.free(&store).await;
                }
                if ttl_differs {
                    process.repair_ttl(&store).await;
                }
            });
        }
    }

    async fn failed(&mut self, error: LockError) {
        tracing::debug!(%error, "no heartbeat; trying again");
        if matches!(error, LockError::SchemaOld { .. }) {
            // The tables are gone, and the session with them.
            let session = self.process.lease.borrow().session;
            self.process.lease.send_modify(crate::lease::Lease::end);
            self.begin_again(session).await;
            return;
        }
        self.tell(SessionEvent::Failed(error)).await;
    }

    /// Of the commits that the database lost, some may have been grants: in a new era everything that is held is looked at
    /// before the lease is renewed. If that fails the next heartbeat brings it up again. Whether the era is a new one.
    async fn reconcile(&self, era: EraId) -> bool {
        let lease = *self.process.lease.borrow();
        if lease.reconciled && lease.era == era {
            return false;
        }
        // First, so that a late answer with a grant of the previous era is not accepted (Client::settle).
        self.process.lease.send_modify(|lease| (lease.era, lease.reconciled) = (era, false));
        match self.process.terms.reconcile(&self.store, era).await {
            // Wakes those that wait for a loss, too.
            Ok(_) => self.process.lease.send_modify(|lease| lease.reconciled = true),
            Err(error) => tracing::debug!(%error, "the held keys could not be checked; trying again"),
        }
        lease.era != era
    }

    /// A session in place of one that is gone.
    async fn begin_again(&self, session: SessionId) {
        self.tell(SessionEvent::Lost).await;
        let _one_at_a_time = self.process.changing_ttl.lock().await;
        let ttl = self.process.wanted_ttl();
        match register(&self.store, &self.process.config, ttl).await {
            Ok(lease) => {
                tracing::warn!(%session, "the session was lost with everything it held; registering a new one");
                self.process.lease.send_if_modified(|now| {
                    if !now.closed {
                        *now = lease;
                    }
                    !now.closed
                });
                self.early.notify_one();
            }
            Err(error) => {
                tracing::warn!(%error, "no new session could be registered; trying again");
                self.tell(SessionEvent::Failed(error)).await;
            }
        }
    }

    async fn tell(&self, event: SessionEvent) {
        if let Some(events) = &self.events {
            // The receiver is gone only when the process ends.
            let _ = events.send(event).await;
        }
    }
}

/// Marks sessions dead that have expired, and ends a quarantine that is over. What fails comes up again.
async fn see_to(
    process: &Process,
    store: &Store,
    events: Option<mpsc::Sender<SessionEvent>>,
    expired: &[(SessionId, u64)],
    quarantine_over: Option<EraId>,
) {
    match store.mark_dead(expired).await {
        Ok(dead) if !dead.is_empty() => {
            process.turns.wake_all();
            if let Some(events) = events {
                let _ = events.send(SessionEvent::Died(dead)).await;
            }
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "a dead session could not be marked; trying again"),
    }
    if let Some(era) = quarantine_over {
        match store.end_quarantine(era).await {
            Ok(()) => process.turns.wake_all(),
            Err(error) => tracing::debug!(%error, "the quarantine could not be ended; trying again"),
        }
    }
}

/// The ttl.
impl Process {
    fn wanted_ttl(&self) -> Duration {
        *self.ttl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants another ttl from now on, and asks for it once. If that fails the heartbeat repeats it.
    pub(crate) async fn set_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        check(ttl, self.config.retry_interval)?;
        let _one_at_a_time = self.changing_ttl.lock().await;
        *self.ttl.lock().unwrap_or_else(PoisonError::into_inner) = ttl;
        self.ask_for_ttl(&self.store, ttl).await
    }

    /// The lease is never longer than what the row can say, whichever of the two ttls it says at the moment.
    async fn ask_for_ttl(&self, store: &Store, ttl: Duration) -> Result<(), LockError> {
        let session = self.lease.borrow().session;
        self.believe_at_most(ttl);
        let attempt = monotonic();
        // A session that is dead is replaced by one with the ttl that is wanted.
        if let Some((beat, era)) = store.change_ttl(session, ttl).await? {
            self.lease.send_modify(|lease| {
                if lease.covers(session, monotonic()) {
                    lease.beat = lease.beat.max(beat);
                    lease.set_ttl(ttl);
                    lease.renew(session, attempt, era, monotonic());
                }
            });
        }
        Ok(())
    }

    fn believe_at_most(&self, ttl: Duration) {
        self.lease.send_if_modified(|lease| {
            let shorter = ttl.saturating_sub(crate::lease::margin(ttl)) < lease.lasts();
            if shorter {
                lease.set_ttl(ttl);
            }
            shorter
        });
    }

    /// A change of the ttl may have failed, or been lost with the database.
    async fn repair_ttl(&self, store: &Store) {
        // If it is being changed at this moment there is nothing to do.
        let Ok(_one_at_a_time) = self.changing_ttl.try_lock() else { return };
        if let Err(error) = self.ask_for_ttl(store, self.wanted_ttl()).await {
            tracing::debug!(%error, "the ttl could not be changed yet; trying again");
        }
    }
}
