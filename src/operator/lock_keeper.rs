//! The replica's session with the lock: registered, kept, and given up in good order. The lock's own heartbeat does the
//! keeping; this room decides when there is to be a session, and passes on what it learns.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use leadergroup_lock::{Hint, LockError, Membership, SessionConfig, SessionEvent, SessionId, Store};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::message::Message;
use crate::telemetry::{LockReading, Metrics};

/// How long a normal exit may take to hand the groups over; after that, expiry does.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Several hints in a row are answered by one heartbeat.
const SETTLE: Duration = Duration::from_millis(5);

/// News of the session.
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
        /// The database may have lost commits, or is another server: rows are to be read again.
        doubt: bool,
        /// A session may have given up its claim to a group, and live on.
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
    pub(super) ttl: Duration,
    pub(super) retry_interval: Duration,
    pub(super) news: mpsc::Sender<Message>,
    /// Whether this replica reaches the API server: one that does not is of no use to any group.
    pub(super) fit: watch::Receiver<bool>,
}

/// Why a session was given up.
enum End {
    /// The replica ends.
    Leaves,
    /// Another session is to be tried for.
    Again,
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
    /// Runs until `leave`; then gives up the claims to all groups, so that others take them at once.
    pub(super) async fn run(self, leave: CancellationToken) {
        let mut fit = self.fit.clone();
        loop {
            tokio::select! {
                () = leave.cancelled() => return,
                () = until(&mut fit, true) => {}
            }
            let joined = tokio::select! {
                // A change of the schema may take minutes; the next replica finishes or repeats it.
                () = leave.cancelled() => return,
                joined = self.join() => joined,
            };
            match joined {
                Ok((membership, events)) => {
                    if let End::Leaves = self.keep(membership, events, &leave).await {
                        return;
                    }
                }
                Err(error) => {
                    self.tell(LockNews::Down(error)).await;
                    leave.run_until_cancelled(sleep(self.retry_interval)).await;
                }
            }
        }
    }

    /// Brings the schema up to date and registers.
    async fn join(&self) -> Result<(Membership, mpsc::Receiver<SessionEvent>), LockError> {
        let health = self.store.check().await?;
        if matches!(health.verdict(), Err(LockError::SchemaOld { .. })) {
            self.store.migrate().await?;
            self.store.check().await?.verdict()?;
        } else {
            health.verdict()?;
        }
        let config = SessionConfig {
            // One database may serve several clusters, and other programs.
            name: format!("{}/{}", self.cluster, self.replica),
            peers: Some(self.cluster.clone()),
            ttl: self.ttl,
            retry_interval: self.retry_interval,
        };
        Membership::join(self.store.clone(), config).await
    }

    /// Passes on what the session learns, until it is given up.
    async fn keep(
        &self,
        membership: Membership,
        mut events: mpsc::Receiver<SessionEvent>,
        leave: &CancellationToken,
    ) -> End {
        let mut fit = self.fit.clone();
        let mut hints = Box::pin(self.store.listen());
        let mut yielded = false;
        loop {
            tokio::select! {
                () = leave.cancelled() => {
                    self.close(membership).await;
                    return End::Leaves;
                }
                () = until(&mut fit, false) => {
                    tracing::warn!("the API server is out of reach: giving all groups to other replicas");
                    self.close(membership).await;
                    self.tell(LockNews::Lost).await;
                    return End::Again;
                }
                Some(hint) = hints.next() => {
                    yielded |= matches!(hint, Hint::Yielded | Hint::Missed);
                    sleep(SETTLE).await;
                    membership.beat_now();
                }
                event = events.recv() => match event {
                    Some(SessionEvent::Beat(beat)) => {
                        self.metrics.heartbeat(beat.took);
                        if let Some(lag) = beat.lag {
                            self.metrics.heartbeat_lag(lag);
                        }
                        self.tell(LockNews::Beat {
                            own: beat.own,
                            living: beat.peers,
                            suspects: beat.suspects,
                            doubt: beat.era_changed,
                            yielded: std::mem::take(&mut yielded),
                            took: beat.took,
                        })
                        .await;
                    }
                    // The next heartbeat no longer counts them among the living.
                    Some(SessionEvent::Died(_)) => membership.beat_now(),
                    Some(SessionEvent::Lost) => {
                        tracing::warn!("the session was marked dead by another replica, or is gone: registering another one");
                        self.tell(LockNews::Lost).await;
                    }
                    Some(SessionEvent::Failed(error)) => {
                        let schema = matches!(error, LockError::SchemaOld { .. });
                        self.tell(LockNews::Down(error)).await;
                        if schema {
                            // The tables are gone, and the session with them: joining again creates them.
                            self.tell(LockNews::Lost).await;
                            return End::Again;
                        }
                    }
                    // The heartbeat has ended, which it does only with the process.
                    None => return End::Again,
                },
            }
        }
    }

    async fn close(&self, membership: Membership) {
        match timeout(CLOSE_TIMEOUT, membership.leave()).await {
            Ok(Ok(())) => tracing::info!("handed all groups over"),
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

/// Completes when the API server is within reach, or out of it, as asked for.
async fn until(fit: &mut watch::Receiver<bool>, wanted: bool) {
    // The sender lives as long as the operator.
    let _ = fit.wait_for(|fit| *fit == wanted).await;
}
