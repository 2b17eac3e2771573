//! The replica's session with the lock: when it is registered and given up, and what its heartbeat reports. The lock's
//! own heartbeat keeps the session alive.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use leadergroup_lock::{BeatEvent, Hint, LockError, Membership, SessionConfig, SessionEvent, Store};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    lock_view::{LockNews, Yielded},
    message::Message,
};
use crate::telemetry::{LockReading, Metrics};

/// How long a normal exit may take to release the groups. After that they are released when the session expires.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Hints that arrive within this time are answered by one heartbeat.
const SETTLE: Duration = Duration::from_millis(5);

/// Keeps the session until `leave` is cancelled.
pub(super) struct Keeper {
    pub(super) store: Store,
    /// The cluster's UID.
    pub(super) cluster: String,
    /// Which replicas share the groups among them ([`peers`]).
    pub(super) peers: String,
    /// The name of this replica.
    pub(super) replica: String,
    /// Its node, if it is known.
    pub(super) node: Option<String>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) ttl: Duration,
    pub(super) retry_interval: Duration,
    pub(super) news: mpsc::Sender<Message>,
    /// Whether this replica reaches the API server. If it does not, it cannot work for any group.
    pub(super) fit: watch::Receiver<bool>,
}

/// The name of the replicas that share groups among them: those of one cluster that watch the same namespaces. Other
/// installations may use the same database. `namespaces` is sorted; empty for all.
pub(super) fn peers(cluster: &str, namespaces: &[String]) -> String {
    if namespaces.is_empty() {
        return cluster.to_owned();
    }
    // FNV-1a: replicas of different versions must agree.
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{cluster}/{:016x}", namespaces.join(",").bytes().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// Why a session ended.
enum End {
    /// The replica is stopping.
    Leaves,
    /// Another session is to be registered.
    Again,
}

/// All metrics. Those of the lock are read from the store.
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
    /// Runs until `leave`, and then releases all groups, so that other replicas can claim them at once.
    pub(super) async fn run(self, leave: CancellationToken) {
        let mut fit = self.fit.clone();
        loop {
            tokio::select! {
                () = leave.cancelled() => return,
                () = until(&mut fit, true) => {}
            }
            let joined = tokio::select! {
                // A migration may take minutes. The next replica finishes or repeats it.
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
                    self.down(error).await;
                    leave.run_until_cancelled(sleep(self.retry_interval)).await;
                }
            }
        }
    }

    /// Migrates the schema if it is old, and registers a session.
    async fn join(&self) -> Result<(Membership, mpsc::Receiver<SessionEvent>), LockError> {
        let health = self.store.check().await?;
        if matches!(health.verdict(), Err(LockError::SchemaOld { .. })) {
            self.store.migrate().await?;
            self.store.check().await?.verdict()?;
        } else {
            health.verdict()?;
        }
        let config = SessionConfig {
            // One database may be shared with other clusters and programs.
            name: format!("{}/{}", self.cluster, self.replica),
            peers: Some(self.peers.clone()),
            place: self.node.clone(),
            ttl: self.ttl,
            retry_interval: self.retry_interval,
        };
        Membership::join(self.store.clone(), config).await
    }

    /// Reports what happens to the session, until it ends.
    async fn keep(
        &self,
        membership: Membership,
        mut events: mpsc::Receiver<SessionEvent>,
        leave: &CancellationToken,
    ) -> End {
        let mut fit = self.fit.clone();
        let listen = || Box::pin(self.store.listen_among(&self.peers));
        let mut hints = listen();
        let mut yielded = Yielded::None;
        loop {
            tokio::select! {
                () = leave.cancelled() => {
                    self.close(membership).await;
                    return End::Leaves;
                }
                () = until(&mut fit, false) => {
                    tracing::warn!("the API server is out of reach: releasing all groups to other replicas");
                    self.close(membership).await;
                    self.tell(LockNews::Lost).await;
                    return End::Again;
                }
                Some(hint) = hints.next() => {
                    match hint {
                        Hint::Told(message) => {
                            // The receiver is gone only when the operator ends.
                            let _ = self.news.send(Message::Told(message)).await;
                            continue;
                        }
                        Hint::Yielded(key) => yielded.add(key),
                        Hint::Missed => yielded = Yielded::Any,
                        Hint::Freed => {}
                    }
                    sleep(SETTLE).await;
                    membership.beat_now();
                }
                event = events.recv() => match event {
                    Some(SessionEvent::Beat(beat)) => self.beat(beat, std::mem::take(&mut yielded)).await,
                    // The next heartbeat no longer counts them among the living.
                    Some(SessionEvent::Died(_)) => membership.beat_now(),
                    Some(SessionEvent::Lost) => {
                        tracing::warn!("the session was marked dead by another replica, or is gone: registering another one");
                        self.tell(LockNews::Lost).await;
                    }
                    Some(SessionEvent::Failed(error)) => {
                        // The server may have closed the other connection, too. Nothing is sent on it, so that this
                        // replica would miss the questions of the others until the connection is tested.
                        hints = listen();
                        let schema = matches!(error, LockError::SchemaOld { .. });
                        self.down(error).await;
                        if schema {
                            // The tables are gone, and the session with them. Joining again creates them.
                            self.tell(LockNews::Lost).await;
                            return End::Again;
                        }
                    }
                    // The heartbeat ends only with the process.
                    None => return End::Again,
                },
            }
        }
    }

    /// A heartbeat succeeded.
    async fn beat(&self, beat: BeatEvent, yielded: Yielded) {
        self.metrics.set_lock_store_up(true);
        self.metrics.heartbeat(beat.took);
        if let Some(lag) = beat.lag {
            self.metrics.heartbeat_lag(lag);
        }
        self.tell(LockNews::Beat {
            own: beat.own,
            living: beat.peers,
            suspects: beat.suspects,
            doubt: beat.era_changed,
            yielded,
            took: beat.took,
        })
        .await;
    }

    /// The database could not be used.
    async fn down(&self, error: LockError) {
        self.metrics.set_lock_store_up(false);
        self.tell(LockNews::Down(error)).await;
    }

    async fn close(&self, membership: Membership) {
        match timeout(CLOSE_TIMEOUT, membership.leave()).await {
            Ok(Ok(())) => tracing::info!("released all groups"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not release the groups; other replicas claim them after the ttl");
            }
            Err(_) => {
                tracing::warn!("releasing the groups took too long; other replicas claim them after the ttl");
            }
        }
    }

    async fn tell(&self, news: LockNews) {
        // The receiver is gone only when the operator ends.
        let _ = self.news.send(Message::Lock(news)).await;
    }
}

/// Completes when this replica is fit to own groups, or when it is not, as asked for.
async fn until(fit: &mut watch::Receiver<bool>, wanted: bool) {
    // The sender lives as long as the operator.
    let _ = fit.wait_for(|fit| *fit == wanted).await;
}
