//! The replica's session with the lock: registered, kept by heartbeats, given up in good order.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::message::Message;
use crate::{
    health::Monotonic,
    telemetry::{LockReading, Metrics},
};
use leadergroup_lock::{Beat, Hint, LockError, Observer, SessionId, SessionSeen, Store};

/// How long a normal exit may take to hand the groups over; after that, expiry does.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// What the session has to tell.
#[derive(Debug)]
pub(super) enum LockNews {
    /// The own session lives, and so do these of the same cluster's operator (the own one included).
    Beat {
        /// The own session.
        own: SessionId,
        /// All living sessions that groups can fall to.
        living: Vec<SessionId>,
        /// Those of them that seem to have stopped.
        suspects: Vec<SessionId>,
        /// The database may have lost commits, or went to another server: rows are to be read anew.
        doubt: bool,
        /// A session may have given up the charge of a group, and live on.
        yielded: bool,
        /// How long the heartbeat took.
        took: Duration,
    },
    /// There is no session any more: others may be in charge of what was ours.
    Lost,
    /// The database cannot be used now. A session that exists is not lost by that: nobody else can use it either, or
    /// somebody marks it dead.
    Down(LockError),
}

/// Keeps the session until `leave` is cancelled.
pub(super) struct Keeper {
    pub(super) store: Store,
    /// The cluster's UID.
    pub(super) cluster: String,
    /// What this replica is called in it.
    pub(super) replica: String,
    pub(super) metrics: Arc<Metrics>,
    /// Whether it is this replica's turn to tidy the database up.
    pub(super) tidies: watch::Sender<bool>,
    pub(super) ttl: Duration,
    pub(super) retry_interval: Duration,
    pub(super) news: mpsc::Sender<Message>,
    /// Whether this replica reaches the API server: one that does not is of no use to any group.
    pub(super) fit: watch::Receiver<bool>,
}

/// All metrics, those of the lock from what the store counts.
pub(super) fn metrics(store: &Store) -> Metrics {
    let store = store.clone();
    Metrics::with_lock(move || {
        let stats = store.stats();
        LockReading {
            attempts: stats.attempts,
            wins: stats.wins,
            losses: stats.losses,
            contended: stats.contended,
            clock_jumps: stats.clock_jumps,
            connections_in_use: stats.pool.in_use,
            connections_idle: stats.pool.idle,
            connections_most: stats.pool.most,
            statements_waiting: stats.pool.waiting,
        }
    })
}

impl Keeper {
    /// Runs until `leave`; then gives up the charge of all groups, so that others take them at once.
    pub(super) async fn run(self, leave: CancellationToken) {
        let mut hints = Box::pin(self.store.listen());
        let mut observer = Observer::new(self.retry_interval);
        let mut ticks = interval(self.retry_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut session = None;
        let mut asked_at = Duration::ZERO;
        let mut yielded = false;
        loop {
            // Asked for once; should there be no answer, the regular questions go on.
            let expiry = observer.next_expiry().filter(|at| *at > asked_at);
            let expiry = expiry.map(|at| at.saturating_sub(Monotonic::now()));
            let mut due = None;
            tokio::select! {
                () = leave.cancelled() => break,
                at = ticks.tick() => due = Some(at),
                () = sleep(expiry.unwrap_or(self.ttl)) => {}
                Some(hint) = hints.next() => {
                    yielded |= matches!(hint, Hint::Yielded | Hint::Missed);
                    self.settle().await;
                }
            }
            asked_at = Monotonic::now();
            if !*self.fit.borrow() {
                if let Some(own) = session.take() {
                    tracing::warn!("the API server is out of reach: giving all groups to other replicas");
                    self.close(own).await;
                    self.tell(LockNews::Lost).await;
                }
                continue;
            }
            let own = if let Some(own) = session {
                own
            } else {
                let opened = tokio::select! {
                    // A change of the schema may take minutes; the next one to come finishes or repeats it.
                    () = leave.cancelled() => break,
                    opened = self.open() => opened,
                };
                match opened {
                    Ok(own) => *session.insert(own),
                    Err(error) => {
                        self.tell(LockNews::Down(error)).await;
                        continue;
                    }
                }
            };
            let sent_at = Monotonic::now();
            let beat = self.store.beat(own).await;
            self.metrics.heartbeat(Monotonic::now().saturating_sub(sent_at));
            if let (Some(due), Ok(_)) = (due, &beat) {
                self.metrics.heartbeat_lag(due.elapsed());
            }
            match beat {
                Ok(beat) if beat.alive => {
                    let yielded = std::mem::take(&mut yielded);
                    self.digest(own, &beat, &mut observer, sent_at, yielded).await;
                }
                Ok(_) | Err(LockError::SessionDead) => {
                    tracing::warn!("the session was marked dead by another replica; registering anew");
                    session = None;
                    ticks.reset_immediately();
                    self.tell(LockNews::Lost).await;
                }
                Err(error) => {
                    // The tables are gone, and the session with them: opening another one makes them anew.
                    if matches!(error, LockError::SchemaOld { .. }) {
                        session = None;
                        self.tell(LockNews::Lost).await;
                    }
                    self.tell(LockNews::Down(error)).await;
                }
            }
        }
        if let Some(own) = session {
            self.close(own).await;
        }
    }

    /// Brings the schema up to date and registers.
    async fn open(&self) -> Result<SessionId, LockError> {
        let health = self.store.check().await?;
        if matches!(health.verdict(), Err(LockError::SchemaOld { .. })) {
            self.store.migrate().await?;
            self.store.check().await?.verdict()?;
        } else {
            health.verdict()?;
        }
        self.store.register(&session_name(&self.cluster, &self.replica), self.ttl).await
    }

    async fn digest(
        &self,
        own: SessionId,
        beat: &Beat,
        observer: &mut Observer,
        sent_at: Duration,
        yielded: bool,
    ) {
        let now = Monotonic::now();
        let expired = observer.observe(now, sent_at, beat);
        let mut dead = Vec::new();
        if !expired.is_empty() {
            match self.store.mark_dead(&expired).await {
                Ok(marked) => dead = marked,
                Err(error) => tracing::warn!(%error, "could not mark an expired session dead; trying again"),
            }
        }
        let living = peers(&beat.sessions, &self.cluster, &dead);
        let turn = living.iter().min() == Some(&own);
        self.tidies.send_if_modified(|tidies| std::mem::replace(tidies, turn) != turn);
        let took = now.saturating_sub(sent_at);
        let suspects = observer.suspects().filter(|session| !dead.contains(session)).collect();
        self.tell(LockNews::Beat { own, living, suspects, doubt: beat.epoch_changed, yielded, took }).await;
    }

    /// Several hints in a row are answered by one beat.
    async fn settle(&self) {
        sleep_until(Instant::now() + Duration::from_millis(5)).await;
    }

    async fn close(&self, own: SessionId) {
        match timeout(CLOSE_TIMEOUT, self.store.close(own)).await {
            Ok(Ok(groups)) => tracing::info!(groups, "handed all groups over"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not hand the groups over; others take them after the ttl");
            }
            Err(_) => tracing::warn!("handing the groups over took too long; others take them after the ttl"),
        }
    }

    async fn tell(&self, news: LockNews) {
        // The receiver is gone only when the operator ends.
        let _ = self.news.send(Message::Lock(news)).await;
    }
}

/// What a session is called: one database may serve several clusters, and other programs.
fn session_name(cluster: &str, replica: &str) -> String {
    format!("{cluster}/{replica}")
}

/// The living sessions of this cluster's operator: no group can fall to anybody else.
fn peers(sessions: &[SessionSeen], cluster: &str, dead: &[SessionId]) -> Vec<SessionId> {
    let ours = |name: &str| name.strip_prefix(cluster).is_some_and(|rest| rest.starts_with('/'));
    let living =
        sessions.iter().filter(|other| !other.dead && !dead.contains(&other.id) && ours(&other.name));
    living.map(|session| session.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fall_to_the_living_replicas_of_their_own_cluster() {
        let session = |name: &str, dead| SessionSeen {
            id: SessionId::new(),
            name: name.to_owned(),
            beat: 1,
            ttl: Duration::from_secs(4),
            dead,
        };
        let sessions = [
            session(&session_name("c1", "operator-a"), false),
            session(&session_name("c1", "operator-b"), false),
            session(&session_name("c1", "operator-c"), true),
            session(&session_name("c1", "operator-d"), false),
            session(&session_name("c12", "operator-a"), false),
            session("batch-job", false),
            session("c1", false),
        ];
        assert_eq!(peers(&sessions, "c1", &[sessions[3].id]), [sessions[0].id, sessions[1].id]);
    }
}
