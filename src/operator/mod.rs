//! The operator: the one room that knows all others.
//!
//! It turns the world into events and effects into calls. Watches, probes, heartbeats and the outcomes of effects all
//! arrive in one loop; the loop hands them to the election of the group that they concern, and starts the effects that
//! come back, each as a task of its own that ends within a bound. Nothing in the loop waits for anything but the next
//! message, so one bad group never holds up another.

#[doc(hidden)]
pub mod bench;
mod claim;
mod connectivity;
mod controller;
mod events;
mod executor;
mod group;
mod index;
mod lock_keeper;
mod message;
mod owner_selector;
mod resync;
mod selection;
mod status;
mod undecodable;
mod watch;
mod watch_health;

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::{
    sync::{self, Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::Settings,
    health::Prober,
    routing::Router,
    telemetry::{BindError, Endpoints, Liveness, Readiness, Server},
};
use controller::{Driver, Parts};
use events::Voice;
use leadergroup_lock::{LockError, Store};

/// How many messages may wait for the loop. Whoever sends more waits.
const QUEUE: usize = 4_096;
/// How many probes may be in flight.
const PROBES: usize = 4_096;
/// How many calls to the API server that no change of holder waits for may be in flight.
const BACKGROUND: usize = 64;
/// How long a connection to the API server may take to come about, and then be silent: longer than a watch on which
/// nothing happens, which is five seconds longer than asked for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(watch::WATCH_SECONDS as u64 + 10);
/// How long one call to the API server may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// After how long without a turn the loop counts as stuck.
const STUCK: Duration = Duration::from_secs(30);
/// Between two attempts to reach the API server at the start.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Why a replica could not be started.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Neither inside a pod nor with a kubeconfig.
    #[error("no way to the API server: run inside a pod with a service account, or set KUBECONFIG ({0})")]
    NoCluster(String),
    /// The settings of the database are wrong.
    #[error(transparent)]
    Database(#[from] LockError),
    /// The address for health checks and metrics is taken.
    #[error(transparent)]
    Listen(#[from] BindError),
}

/// Runs one replica until `shutdown`; then hands its groups over and returns.
///
/// # Errors
/// Only for what cannot get better by waiting: everything else is logged, reported in conditions, and tried again.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> Result<(), OperatorError> {
    let client = client().await?;
    let store = settings.store()?;
    let endpoint = Server::bind(settings.listen).await?;
    tracing::info!(
        replica = settings.replica,
        version = env!("CARGO_PKG_VERSION"),
        listen = %endpoint.address(),
        "starting"
    );
    let (metrics, liveness, readiness) =
        (Arc::new(lock_keeper::metrics(&store)), Liveness::new(STUCK), Readiness::default());
    let endpoints =
        Endpoints { metrics: metrics.clone(), liveness: liveness.clone(), readiness: readiness.clone() };
    let answering = CancellationToken::new();
    let answers = tokio::spawn(endpoint.run(endpoints, answering.clone()));
    let voice = Voice::new(client.clone(), &settings.replica, metrics, liveness, &readiness);
    if let Some(cluster) = identify(&client, &voice.liveness, &shutdown).await {
        operate(&settings, client, store, cluster, voice, shutdown).await;
    }
    answering.cancel();
    // It bounds itself; how it ends changes nothing any more.
    let _ = answers.await;
    Ok(())
}

/// Looks after the groups until `shutdown`.
async fn operate(
    settings: &Settings,
    client: Client,
    store: Store,
    cluster: String,
    voice: Voice,
    shutdown: CancellationToken,
) {
    let (messages, inbox) = mpsc::channel(QUEUE);
    let (probes, evidence) = mpsc::channel(QUEUE);
    let (fit, fitness) = sync::watch::channel(true);
    watch::Feed {
        client: client.clone(),
        namespaces: settings.namespaces.clone(),
        messages: messages.clone(),
    }
    .start();
    let patience = settings.ttl * 2;
    let ping = watch::ping(client.clone(), settings.retry_interval, patience, fit, messages.clone());
    let ping = tokio::spawn(ping);
    let leave = CancellationToken::new();
    let (pruned, until) = (store.clone(), leave.clone());
    tokio::spawn(async move { until.run_until_cancelled(leadergroup_lock::housekeeping(&pruned)).await });
    let keeper = lock_keeper::Keeper {
        store: store.clone(),
        cluster: cluster.clone(),
        replica: settings.replica.clone(),
        metrics: voice.metrics.clone(),
        ttl: settings.ttl,
        retry_interval: settings.retry_interval,
        news: messages.clone(),
        fit: fitness,
    };
    let keeper = tokio::spawn(keeper.run(leave.clone()));
    let parts = Parts {
        cluster,
        router: Router::new(client, CALL_TIMEOUT).observed(events::count_writes(voice.metrics.clone())),
        store,
        prober: Prober::new(probes, PROBES),
        messages,
        voice,
        namespaces: settings.namespaces.clone(),
        session_ttl: settings.ttl,
        background: Arc::new(Semaphore::new(BACKGROUND)),
    };
    Driver::new(parts).run(inbox, evidence, shutdown).await;
    leave.cancel();
    // The keeper bounds itself; its end is waited for so that the groups are handed over before the process ends.
    if keeper.await.is_err() {
        tracing::warn!("the session's task ended badly; other replicas take over after the ttl");
    }
    ping.abort();
}

/// A client that does not retry by itself: the election knows better what to do next.
async fn client() -> Result<Client, OperatorError> {
    let no_cluster = |error: &dyn std::fmt::Display| OperatorError::NoCluster(error.to_string());
    let mut config = kube::Config::infer().await.map_err(|error| no_cluster(&error))?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // Counts from the last byte that went either way: a list, or the start of a watch, that never comes is given up.
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    Client::try_from(config).map_err(|error| no_cluster(&error))
}

/// The cluster's identity, as soon as the API server tells it; none when the replica is to stop before.
async fn identify(client: &Client, liveness: &Liveness, shutdown: &CancellationToken) -> Option<String> {
    let mut said = None;
    loop {
        liveness.touch();
        let problem = match timeout(CALL_TIMEOUT, watch::cluster_uid(client)).await {
            Ok(Ok(uid)) => return Some(uid),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {CALL_TIMEOUT:?}"),
        };
        if said.as_ref() != Some(&problem) {
            tracing::error!(
                problem,
                "the namespace kube-system cannot be read; check that the API server is up and that the operator's role \
                 allows `get` on it (the chart's does). Trying again"
            );
            said = Some(problem);
        }
        tokio::select! {
            () = sleep(START_PAUSE) => {}
            () = shutdown.cancelled() => return None,
        }
    }
}
