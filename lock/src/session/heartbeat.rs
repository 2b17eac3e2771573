//! The heartbeat: the one loop that keeps a session alive, watches others, and marks expired ones dead. Clients run it
//! for the keys that they hold, controllers for the keys that they have claimed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::session::lease::Lease;
use crate::session::process::{Process, register};
use crate::session::reconcile::Terms;
use crate::{
    LockError, SessionId, Store,
    protocol::{Beat, EraId, FailureDetector, Quarantine},
    session::settings::SessionConfig,
};

/// Events that may wait to be received.
const EVENTS: usize = 64;

/// An event of a controller's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// A heartbeat was answered.
    Beat(BeatEvent),
    /// Other sessions have been marked dead, by this one.
    Died(Vec<SessionId>),
    /// The session is dead: others may have claimed its keys. A new one is registered with the next heartbeat.
    Lost,
    /// The database cannot be used now. This alone does not end the session: others cannot use the database either, or,
    /// if they can, one of them marks the session dead.
    Failed(LockError),
}

/// A heartbeat that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeatEvent {
    /// The own session.
    pub own: SessionId,
    /// All living peers, the own session included.
    pub peers: Vec<Peer>,
    /// Those of the peers that seem to have stopped.
    pub suspects: Vec<SessionId>,
    /// The database may have lost commits: read the rows again.
    pub era_changed: bool,
    /// How long the answer took.
    pub took: Duration,
    /// How long after its due time the heartbeat was answered, if it was a regular one.
    pub lag: Option<Duration>,
}

/// A living session among peers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its id.
    pub session: SessionId,
    /// Where its process runs, if it said so ([`SessionConfig::place`]).
    pub place: Option<String>,
}

/// A controller's session, kept alive in the background. Dropping it stops the heartbeat, and others take over after
/// the ttl; [`leave`](Self::leave) hands everything over at once.
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
    /// Registers a session and starts its heartbeat. The caller has to receive the events: after 64 that were not
    /// received, no more heartbeats are sent, and the session is lost.
    pub async fn join(
        store: Store,
        config: SessionConfig,
    ) -> Result<(Self, mpsc::Receiver<SessionEvent>), LockError> {
        let process = Arc::new(Process::register(store.clone(), config).await?);
        let (events, received) = mpsc::channel(EVENTS);
        let early = Arc::new(Notify::new());
        let heartbeat = Heartbeat::new(Arc::clone(&process), store, Arc::clone(&early), Some(events));
        // The first heartbeat returns the other sessions.
        early.notify_one();
        let task = tokio::spawn(heartbeat.run());
        Ok((Self { process, early, task }, received))
    }

    /// The present session.
    pub fn session(&self) -> SessionId {
        self.process.lease.borrow().session
    }

    /// Sends a heartbeat now, because something has happened that it may show.
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
    /// If the loop runs in its own thread, this store has its own connections.
    store: Store,
    /// Asks for the next heartbeat to be sent early.
    early: Arc<Notify>,
    /// Where a controller's events go. `None` for a client's session.
    events: Option<mpsc::Sender<SessionEvent>>,
    detector: FailureDetector,
    quarantine: Quarantine,
    revoked: u64,
    /// The era in which the database was seen to have lost commits, until a new one has begun.
    lost_commits: Option<EraId>,
    /// The client's session whose loss by failing heartbeats was logged last.
    reported: Option<SessionId>,
    /// Work that follows from answers, such as death marks. One task at a time; the next heartbeat does not wait for
    /// it. Ends with the loop.
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
            lost_commits: None,
            reported: None,
            chores: JoinSet::new(),
        }
    }

    /// Runs until the process is closed, or the future is dropped.
    pub(crate) async fn run(mut self) {
        let interval = self.process.config.retry_interval;
        let mut attempt = self.process.now();
        let mut planned = attempt + interval;
        let mut lease = self.process.lease.subscribe();
        loop {
            // One extra heartbeat when a session may have expired; if it is not answered, the regular ones continue.
            let expiry = self.detector.next_expiry().filter(|at| *at > attempt);
            let due = expiry.map_or(planned, |at| at.min(planned));
            let mut regular = true;
            tokio::select! {
                // In this order, so that a simulation can repeat a run.
                biased;
                _ = lease.wait_for(|lease| lease.closed) => return,
                () = self.early.notified() => regular = false,
                () = sleep(due.saturating_sub(self.process.now()).min(interval)) => {}
            }
            attempt = self.process.now();
            let lag = regular.then_some(due);
            let watch = self.process.watched.list();
            let before = *self.process.lease.borrow();
            match self.store.beat(before.session, &watch).await {
                Ok(beat) if self.shows_lost_commits(&before, &beat) => self.report_lost_commits(&beat).await,
                Ok(beat) => self.answered(beat, attempt, lag).await,
                Err(error) => self.failed(error).await,
            }
            planned = attempt + interval;
        }
    }

    async fn answered(&mut self, beat: Beat, attempt: Duration, due: Option<Duration>) {
        let (session, now) = (beat.own, self.process.now());
        let in_time = self.process.covers(session);
        if !beat.alive || !in_time && self.events.is_none() {
            self.end_lease(session, beat.alive);
            self.begin_again(session).await;
            return;
        }
        let era_changed = self.reconcile(beat.era).await;
        self.process.lease.send_if_modified(|lease| {
            // In another era, heartbeats may be missing.
            lease.beat = if era_changed { beat.count } else { lease.beat.max(beat.count) };
            lease.quarantine = beat.quarantine;
            lease.renew(session, attempt, beat.era, self.process.now())
        });
        if std::mem::replace(&mut self.revoked, beat.revoked) != beat.revoked {
            self.process.terms.doubt();
        }
        let lag = due.map(|due| now.saturating_sub(due));
        if let Some(lag) = lag {
            self.process.store.database.counters.heartbeat(lag);
        }
        let expired = self.detector.observe(now, attempt, &beat);
        let quarantine_is_over = self.quarantine.observe(now, attempt, &beat);
        if self.events.is_some() {
            let suspects: Vec<_> = self.detector.suspects().collect();
            let own = Peer { session, place: self.process.config.place.clone() };
            let peers = beat.sessions.iter().filter(|other| other.peer && !other.dead);
            let peers = peers.map(|other| Peer { session: other.id, place: other.place.clone() });
            let event = BeatEvent {
                own: session,
                peers: peers.chain([own]).collect(),
                suspects,
                era_changed,
                took: now.saturating_sub(attempt),
                lag,
            };
            self.tell(SessionEvent::Beat(event)).await;
        }
        self.start_chores(&beat, expired, quarantine_is_over);
    }

    /// Ends the lease. This comes before anything that may take time: everything that was held is lost, and the guards
    /// must show it.
    fn end_lease(&self, session: SessionId, alive: bool) {
        let lease = *self.process.lease.borrow();
        let over = lease.until().map(|until| until + lease.margin());
        self.process.end_lease();
        if let Some(over) = over.filter(|_| alive) {
            // The keys become free for others no sooner than if another session had marked this one dead, and after the
            // delay that was asked for. Until then, the holders have time to stop.
            let store = self.store.clone();
            tokio::spawn(async move {
                sleep(over.saturating_sub(store.clock().now())).await;
                let _ = store.abandon(session).await;
            });
        }
    }

    /// Starts what a heartbeat found to do, unless the work of an earlier one is still under way.
    fn start_chores(&mut self, beat: &Beat, expired: Vec<(SessionId, u64)>, quarantine_is_over: bool) {
        while self.chores.try_join_next().is_some() {}
        let overdue = self.process.terms.to_be_freed();
        if self.chores.is_empty() && (!expired.is_empty() || quarantine_is_over || !overdue.is_empty()) {
            let (process, store, events) =
                (Arc::clone(&self.process), self.store.clone(), self.events.clone());
            let era = beat.era;
            self.chores.spawn(async move {
                see_to(&process, &store, events, &expired, era, quarantine_is_over).await;
                for term in overdue {
                    Terms::free(&store, &*term).await;
                }
            });
        }
    }

    /// Whether an answer shows, by the lease `before` it, that the database has lost commits although its history is
    /// the same, as when old files were put back. Remains true until that was reported.
    fn shows_lost_commits(&mut self, before: &Lease, beat: &Beat) -> bool {
        // A heartbeat counts itself.
        let known = before.beat + u64::from(beat.alive);
        let in_time = before.covers(beat.own, self.process.now());
        let may_be_compared = if before.era == beat.era {
            // A session without a row, and so without a count, may have been dead for long.
            before.session == beat.own && (in_time || beat.count > 0)
        } else {
            // A failover begins an era with a quarantine. An era without one is an earlier one.
            in_time && beat.quarantine.is_none()
        };
        if beat.count < known && may_be_compared {
            tracing::error!(
                counted = beat.count,
                known,
                "the database has lost commits: it has counted fewer heartbeats than before. A new era begins"
            );
            self.lost_commits = Some(beat.era);
        }
        self.lost_commits == Some(beat.era)
    }

    /// Begins another era. The answer that shows the loss renews nothing; the next one is from that era.
    async fn report_lost_commits(&mut self, beat: &Beat) {
        match self.store.commits_were_lost(beat.era).await {
            Ok(_) => {
                self.lost_commits = None;
                self.early.notify_one();
            }
            Err(error) => tracing::warn!(%error, "no new era could be begun; trying again"),
        }
        if !beat.alive {
            self.end_lease(beat.own, false);
            self.begin_again(beat.own).await;
        }
    }

    async fn failed(&mut self, error: LockError) {
        let Lease { session, closed, .. } = *self.process.lease.borrow();
        // A controller gets each failure as an event.
        let is_lost = self.events.is_none() && !closed && !self.process.covers(session);
        if is_lost && self.reported.replace(session) != Some(session) {
            tracing::warn!(%session, %error, "for lack of heartbeats, all keys are lost; trying again");
        } else {
            tracing::debug!(%error, "no heartbeat; trying again");
        }
        if matches!(error, LockError::SchemaOld { .. }) {
            // The tables were removed, and the session with them.
            self.process.end_lease();
            self.begin_again(session).await;
            return;
        }
        self.tell(SessionEvent::Failed(error)).await;
    }

    /// The commits that the database lost may include grants: in a new era, everything that is held is checked before
    /// the lease is renewed. If that fails, the next heartbeat tries again. Returns whether the era is a new one.
    async fn reconcile(&self, era: EraId) -> bool {
        let lease = *self.process.lease.borrow();
        if lease.reconciled && lease.era == era {
            return false;
        }
        // This comes first, so that a grant of the previous era whose answer is still to come does not count
        // (`Client::hold`).
        self.process.lease.send_modify(|lease| (lease.era, lease.reconciled) = (era, false));
        match self.process.terms.reconcile(&self.store, era).await {
            // This also wakes those that wait for a loss.
            Ok(_) => self.process.lease.send_modify(|lease| lease.reconciled = true),
            Err(error) => tracing::debug!(%error, "the held keys could not be checked; trying again"),
        }
        lease.era != era
    }

    /// Registers a session in place of one that is dead.
    async fn begin_again(&self, session: SessionId) {
        self.tell(SessionEvent::Lost).await;
        match register(&self.store, &self.process.config).await {
            Ok(lease) => {
                tracing::warn!(%session, "the session was lost, and all its keys with it; a new one begins");
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

/// Marks expired sessions dead, and ends a quarantine that is over. A later heartbeat repeats what fails.
async fn see_to(
    process: &Process,
    store: &Store,
    events: Option<mpsc::Sender<SessionEvent>>,
    expired: &[(SessionId, u64)],
    era: EraId,
    quarantine_is_over: bool,
) {
    match store.mark_dead(expired, Some(era)).await {
        Ok(dead) if !dead.is_empty() => {
            for dead in &dead {
                process.turns.wake_those_behind(*dead);
            }
            if let Some(events) = events {
                let _ = events.send(SessionEvent::Died(dead)).await;
            }
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "a dead session could not be marked; trying again"),
    }
    if quarantine_is_over {
        match store.end_quarantine(era).await {
            Ok(()) => process.turns.wake_all(),
            Err(error) => tracing::debug!(%error, "the quarantine could not be ended; trying again"),
        }
    }
}
