//! The replica's session with the lock: when it is registered and given up, and what its heartbeat reports. The lock's
//! own heartbeat keeps the session alive.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, Stream, StreamExt as _};
use leadergroup_lock::{
    LockError, LockMetrics, Store,
    controller::{BeatEvent, Hint, Membership, SessionConfig, SessionEvent},
};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::Reason,
    operator::{
        executor::KINDS_OF_WRITES,
        index::{Event, lock_view::LockNews},
        message::Message,
    },
    ownership::{Yielded, stable_hash},
    telemetry::Metrics,
};

/// How long a normal exit may take to release the groups. After that they are released when the session expires.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Hints that arrive within this time are answered by one heartbeat: each makes the controller look at all groups, and
/// a replica that gives up many groups sends a hint for each.
const GATHER: Duration = Duration::from_millis(5);
/// The most hints that are answered by one heartbeat.
const MOST_HINTS: usize = 1_000;

/// Keeps the session until `leave` is cancelled.
pub(in crate::operator) struct Keeper {
    pub(in crate::operator) store: Store,
    /// The cluster's UID.
    pub(in crate::operator) cluster: String,
    /// Which replicas share the groups among them ([`peers`]).
    pub(in crate::operator) peers: String,
    /// The name of this replica.
    pub(in crate::operator) replica: String,
    /// Its node, if it is known.
    pub(in crate::operator) node: Option<String>,
    pub(in crate::operator) metrics: Arc<Metrics>,
    pub(in crate::operator) ttl: Duration,
    pub(in crate::operator) retry_interval: Duration,
    pub(in crate::operator) news: mpsc::Sender<Message>,
    /// Whether this replica reaches the API server. If it does not, it cannot work for any group.
    pub(in crate::operator) fit: watch::Receiver<bool>,
}

/// The name of the replicas that share groups among them: those of one cluster that watch the same namespaces. Other
/// installations may use the same database. `namespaces` is sorted; empty for all.
pub(in crate::operator) fn peers(cluster: &str, namespaces: &[String]) -> String {
    if namespaces.is_empty() {
        return cluster.to_owned();
    }
    format!("{cluster}/{:016x}", stable_hash(namespaces.join(",").as_bytes()))
}

/// Why a session ended.
enum End {
    /// The replica is stopping.
    Leaves,
    /// Another session is to be registered.
    Again,
}

/// All metrics. The store counts what concerns the database; what becomes of the changes of lock rows is counted here.
pub(in crate::operator) fn metrics(store: &Store) -> Metrics {
    let unplanned = Reason::ALL.iter().filter(|reason| reason.is_failure() || reason.is_end());
    let metrics = Metrics::new().counting(unplanned, KINDS_OF_WRITES);
    metrics.with(|registry| LockMetrics::new(store).only_database().register(registry))
}

impl Keeper {
    /// Runs until `leave`, and then releases all groups, so that other replicas can claim them at once.
    pub(in crate::operator) async fn run(self, leave: CancellationToken) {
        let mut fit = self.fit.clone();
        loop {
            tokio::select! {
                biased;
                () = leave.cancelled() => return,
                () = until(&mut fit, true) => {}
            }
            let joined = tokio::select! {
                biased;
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
        let mut failed = false;
        let mut yielded = Yielded::None;
        loop {
            tokio::select! {
                biased;
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
                    if let Some(message) = yielded.note(hint) {
                        self.pass_on(message).await;
                        continue;
                    }
                    sleep(GATHER).await;
                    for hint in waiting(&mut hints) {
                        if let Some(message) = yielded.note(hint) {
                            self.pass_on(message).await;
                        }
                    }
                    membership.beat_now();
                }
                event = events.recv() => match event {
                    Some(SessionEvent::Beat(beat)) => {
                        // The server may have closed the other connection, too. Nothing is sent on it, so that this
                        // replica would miss the questions of the others until the connection is tested.
                        if std::mem::take(&mut failed) {
                            hints = listen();
                        }
                        self.beat(beat, std::mem::take(&mut yielded)).await;
                    }
                    // The next heartbeat no longer counts them among the living.
                    Some(SessionEvent::Died(_)) => membership.beat_now(),
                    Some(SessionEvent::Lost) => {
                        tracing::warn!("the session was marked dead by another replica, or is gone: registering another one");
                        self.tell(LockNews::Lost).await;
                    }
                    Some(SessionEvent::Failed(error)) => {
                        failed = true;
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

    /// What another replica tells.
    async fn pass_on(&self, message: String) {
        // The receiver is gone only when the operator ends.
        let _ = self.news.send(Message::Told(message)).await;
    }

    async fn tell(&self, news: LockNews) {
        // The receiver is gone only when the operator ends.
        let _ = self.news.send(Message::Seen(Event::Lock(news))).await;
    }
}

/// The hints that have arrived.
fn waiting(hints: &mut (impl Stream<Item = Hint> + Unpin)) -> impl Iterator<Item = Hint> {
    std::iter::from_fn(|| hints.next().now_or_never().flatten()).take(MOST_HINTS)
}

impl Yielded {
    /// Takes a hint in. Returns what another replica tells, if it is that.
    fn note(&mut self, hint: Hint) -> Option<String> {
        match hint {
            Hint::Yielded(key) => self.add(key),
            Hint::Missed => *self = Self::Any,
            Hint::Freed => {}
            Hint::Told(message) => return Some(message),
        }
        None
    }
}

/// Completes when this replica is fit to own groups, or when it is not, as asked for.
async fn until(fit: &mut watch::Receiver<bool>, wanted: bool) {
    // The sender lives as long as the operator.
    let _ = fit.wait_for(|fit| *fit == wanted).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures::{channel::mpsc::unbounded, stream};
    use leadergroup_lock::{
        Key,
        memory::{Call, Fate, MemoryDatabase},
    };
    use parking_lot::Mutex;

    use super::*;

    fn key(index: usize) -> Key {
        Key::new(format!("c1/shop/g{index}")).expect("a key")
    }

    /// A server with `default_transaction_read_only` accepts connections, listens, and refuses every heartbeat.
    #[tokio::test(start_paused = true)]
    async fn a_read_only_database_is_tried_at_the_usual_times() {
        let database = MemoryDatabase::new();
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&calls);
        database.set_network(move |call: &Call<'_>| {
            noted.lock().push(call.statement.to_owned());
            Fate::answered(Duration::from_millis(1), Duration::from_millis(1))
        });
        let (news, mut told) = mpsc::channel(100);
        let (_fit, fit) = watch::channel(true);
        let store = Store::in_memory(&database);
        let keeper = Keeper {
            metrics: Arc::new(metrics(&store)),
            store,
            cluster: "c1".to_owned(),
            peers: peers("c1", &[]),
            replica: "replica".to_owned(),
            node: None,
            ttl: Duration::from_secs(4),
            retry_interval: Duration::from_secs(1),
            news,
            fit,
        };
        let leave = CancellationToken::new();
        let keeping = tokio::spawn(keeper.run(leave.clone()));
        let mut is_up = async |up: bool| {
            let found = async {
                loop {
                    match told.recv().await.expect("the keeper runs") {
                        Message::Seen(Event::Lock(LockNews::Beat { .. })) if up => break,
                        Message::Seen(Event::Lock(LockNews::Down(_))) if !up => break,
                        _ => {}
                    }
                }
            };
            timeout(Duration::from_secs(10), found).await.expect("it is so in time");
        };
        is_up(true).await;
        database.set_read_only(true);
        is_up(false).await;
        calls.lock().clear();
        let from = tokio::time::Instant::now();
        while from.elapsed() < Duration::from_mins(1) {
            is_up(false).await;
        }
        let count = |name: &str| calls.lock().iter().filter(|call| *call == name).count();
        assert!((59..=61).contains(&count("heartbeat")), "{:?}", calls.lock());
        assert_eq!(count("listen"), 0, "{:?}", calls.lock());
        // What other replicas have told in the meantime may be lost.
        database.set_read_only(false);
        is_up(true).await;
        is_up(true).await;
        assert_eq!(count("listen"), 1, "{:?}", calls.lock());
        leave.cancel();
        keeping.await.expect("it ends");
    }

    #[test]
    fn no_metric_has_two_sources() {
        let refused = LockError::Invalid { what: "URL", problem: "is missing".to_owned() };
        let page = metrics(&Store::refusing(refused)).encode().expect("a page");
        let families: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let names: BTreeSet<&str> = families.iter().filter_map(|family| family.split(' ').next()).collect();
        assert_eq!(names.len(), families.len(), "{page}");
        for name in ["operations", "heartbeat_lag_seconds", "statements_waiting", "store_up", "sessions_lost"]
        {
            assert!(names.contains(format!("leadergroup_lock_{name}").as_str()), "{name}: {page}");
        }
        // They are counted as operations, or are of programs that hold locks themselves.
        for name in [
            "attempts",
            "wins",
            "losses",
            "contention",
            "lost",
            "wait_duration_seconds",
            "hold_duration_seconds",
        ] {
            assert!(!names.contains(format!("leadergroup_lock_{name}").as_str()), "{name}: {page}");
        }
    }

    #[test]
    fn the_groups_that_a_replica_gives_up_together_are_noted_for_one_heartbeat() {
        let (sender, mut hints) = unbounded();
        let send = |hint: Hint| sender.unbounded_send(hint).expect("it is read");
        (0..50).for_each(|index| send(Hint::Yielded(key(index))));
        send(Hint::Told("ask".to_owned()));
        (50..60).for_each(|index| send(Hint::Yielded(key(index))));
        let mut yielded = Yielded::None;
        let told: Vec<String> = waiting(&mut hints).filter_map(|hint| yielded.note(hint)).collect();
        assert_eq!(told, ["ask"]);
        assert!((0..60).all(|index| yielded.concerns(&key(index))) && !yielded.concerns(&key(60)));
        assert_eq!(waiting(&mut hints).count(), 0, "it does not wait for more");
        // Others come later.
        send(Hint::Missed);
        assert!(waiting(&mut hints).find_map(|hint| yielded.note(hint)).is_none());
        assert!(yielded.concerns(&key(60)), "any may have been missed");
        assert_eq!(waiting(&mut stream::repeat(Hint::Freed)).count(), MOST_HINTS);
    }

    #[test]
    fn replicas_share_groups_with_those_of_their_cluster_that_watch_the_same_namespaces() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let of = |cluster, namespaces: &[&str]| peers(cluster, &names(namespaces));
        assert_eq!(of("c1", &[]), "c1");
        assert_eq!(of("c1", &["a", "b"]), of("c1", &["a", "b"]));
        let all = [of("c1", &[]), of("c2", &[]), of("c1", &["a"]), of("c1", &["a", "b"]), of("c2", &["a"])];
        let different: BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        // Replicas of different versions must agree.
        assert_eq!(of("c1", &["a", "b"]), "c1/b5e0d0e01e6f6fbf");
    }
}
