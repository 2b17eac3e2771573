//! The operator: it connects the cluster, the elections, the lock and the API server.
//!
//! Events from watches, probes and heartbeats update the `index`. The `controller` looks at the groups that changed,
//! steps their elections, and starts the effects that come out. Each effect is a task of its own that ends within a
//! bound and sends its outcome back as a message.
//!
//! | where | what for |
//! |---|---|
//! | `cluster`, `session` | what comes in: the watches, and the session with the lock |
//! | `index` | what this replica sees, without I/O |
//! | `controller`, `group`, `message` | the loop, what it runs for each group, and all that it receives |
//! | `executor`, `lock`, `endpoints`, `status` | what goes out: effects, claims, slices, and what users read |
//! | `commands` | what the commands read |
//! | `object`, `trouble` | what all use |
//!
//! This is the only room that uses all the others.

mod cluster;
mod commands;
mod controller;
mod endpoints;
mod executor;
mod group;
mod index;
mod lock;
mod message;
mod object;
mod session;
mod status;
mod trouble;

use std::{io, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use tokio::{
    sync::{self, mpsc},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Settings,
    health::{ProbeEvent, Prober},
    routing::Router,
    telemetry::{BindError, Endpoints, Liveness, Metrics, ReadyChecks, Server, Traces},
};
pub use cluster::api_server::{ApiServer, NoCluster};
use cluster::{descriptors, watch};
pub use commands::{
    Claimant, ExplainError, ExplainedPod, Explanation, Known, claimant, explain, hears_no_pod,
};
use controller::{Controller, Health, Parts};
use executor::{
    Context, count_writes,
    hook_places::{self, HookPlaces},
};
use leadergroup_lock::{Clock, LockError, Store};
use lock::keys::KeyRule;
use message::Message;
pub use status::WallClock;
use status::events::Events;

/// How many messages may wait for the controller. A task that sends more waits.
const QUEUE: usize = 4_096;
/// How many probes may be in flight.
const PROBES: usize = 4_096;
/// How many files may be open at a time: the connections of the prober and of hooks, and some for all other purposes.
const DESCRIPTORS: u64 = PROBES as u64 * 13 / 4 + hook_places::PLACES as u64 + 256;
/// How long one call to the API server may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// After this time without a turn the controller counts as stuck.
const STUCK: Duration = Duration::from_secs(30);
/// The pause between two attempts to reach the API server at the start.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Why a replica could not be started.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Neither inside a pod nor with a kubeconfig.
    #[error(transparent)]
    NoCluster(#[from] NoCluster),
    /// The settings of the database are wrong.
    #[error(transparent)]
    Database(#[from] LockError),
    /// The address for health checks and metrics is taken.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The operating system allows no further thread.
    #[error("cannot start the thread that probes pods: {0}; check the limits of the container")]
    Prober(#[source] io::Error),
}

/// Runs one replica until `shutdown`, then releases its groups and returns.
///
/// # Errors
/// Only for what waiting cannot cure. Everything else is logged, reported in conditions, and tried again.
pub async fn run(settings: Settings, shutdown: CancellationToken) -> Result<(), OperatorError> {
    let api = ApiServer::find().await?;
    let store = settings.store()?;
    descriptors::raise_limit(DESCRIPTORS);
    let endpoint = Server::bind(settings.listen)?;
    // Traces are no reason not to work.
    let traces =
        Traces::new(settings.tracing_endpoint.as_deref(), &settings.replica).unwrap_or_else(|error| {
            tracing::warn!(%error, "traces are off");
            Traces::default()
        });
    let (events, evidence) = mpsc::channel(QUEUE);
    let prober = Prober::new(events, PROBES).map_err(OperatorError::Prober)?;
    tracing::info!(
        replica = settings.replica,
        version = env!("CARGO_PKG_VERSION"),
        listen = %endpoint.address(),
        "starting"
    );
    let replica = Replica::new(settings, api, store, (prober, evidence)).traced(traces.clone());
    let answering = CancellationToken::new();
    let answers = tokio::spawn(endpoint.run(replica.endpoints(), answering.clone()));
    replica.run(shutdown).await;
    traces.end().await;
    answering.cancel();
    // The server ends within a bound of its own, and its result no longer matters.
    let _ = answers.await;
    Ok(())
}

/// One replica, with its connections. [`run`] makes them; in a simulation they lead to what is simulated.
pub struct Replica {
    settings: Settings,
    api: ApiServer,
    store: Store,
    prober: Prober,
    evidence: mpsc::Receiver<ProbeEvent>,
    wall_clock: WallClock,
    metrics: Arc<Metrics>,
    traces: Traces,
    liveness: Liveness,
    readiness: ReadyChecks,
}

impl Replica {
    /// A replica that has not started yet. The second half of `probing` receives the prober's events.
    pub fn new(
        settings: Settings,
        api: ApiServer,
        store: Store,
        probing: (Prober, mpsc::Receiver<ProbeEvent>),
    ) -> Self {
        let metrics = Arc::new(session::metrics(&store));
        let (liveness, readiness) = (Liveness::new(STUCK), ReadyChecks::default());
        let (prober, evidence) = probing;
        let traces = Traces::default();
        let wall_clock = Timestamp::now;
        Self { settings, api, store, prober, evidence, wall_clock, metrics, traces, liveness, readiness }
    }

    /// The same with another clock for what users read.
    #[must_use]
    pub fn with_wall_clock(self, wall_clock: WallClock) -> Self {
        Self { wall_clock, ..self }
    }

    /// The same, with traces of its changes of holder.
    fn traced(self, traces: Traces) -> Self {
        Self { traces, ..self }
    }

    /// What is served for probes and metrics.
    fn endpoints(&self) -> Endpoints {
        Endpoints {
            metrics: self.metrics.clone(),
            liveness: self.liveness.clone(),
            readiness: self.readiness.clone(),
        }
    }

    /// Works until `shutdown`, then releases the groups.
    pub async fn run(self, shutdown: CancellationToken) {
        let health = Health {
            lock: self.readiness.check("lock-store", "no session with the lock's database yet"),
            watches: self
                .readiness
                .check("api-server", "the first lists of groups and pods are not complete yet"),
            liveness: self.liveness.clone(),
        };
        if let Some(cluster) = identify(&self.api.changes, &health.liveness, &shutdown).await {
            self.operate(cluster, health, shutdown).await;
        }
    }

    /// Works for the groups of this cluster until `shutdown`.
    async fn operate(self, cluster: String, health: Health, shutdown: CancellationToken) {
        let Self { settings, api, store, prober, evidence, wall_clock, metrics, traces, .. } = self;
        let (messages, inbox) = mpsc::channel(QUEUE);
        let (fit, fitness) = sync::watch::channel(true);
        start_watches(&settings, api.watches, store.clock(), messages.clone());
        let ping = start_ping(&settings, api.changes.clone(), store.clock(), fit, messages.clone());
        let leave = CancellationToken::new();
        let (pruned, until) = (store.clone(), leave.clone());
        tokio::spawn(async move {
            until.run_until_cancelled(leadergroup_lock::admin::housekeeping(&pruned)).await
        });
        let peers = session::peers(&cluster, &settings.namespaces);
        let keeper = session::Keeper {
            store: store.clone(),
            cluster: cluster.clone(),
            peers: peers.clone(),
            replica: settings.replica.clone(),
            node: settings.node.clone(),
            metrics: metrics.clone(),
            ttl: settings.ttl,
            retry_interval: settings.retry_interval,
            news: messages.clone(),
            fit: fitness,
        };
        let keeper = tokio::spawn(keeper.run(leave.clone()));
        let keys = KeyRule { cluster: cluster.clone(), namespaced: settings.namespaced_keys };
        let pods = prober.network();
        let parts = Parts {
            cluster,
            peers,
            namespaces: settings.namespaces.clone(),
            node: settings.node.clone(),
            session_ttl: settings.ttl,
            wall_clock,
            prober,
            events: Events::new(api.background.clone(), &settings.replica, metrics.clone(), wall_clock),
            context: Context {
                router: Router::new(api.changes, CALL_TIMEOUT)
                    .background(api.background)
                    .observed(count_writes(metrics.clone())),
                store,
                metrics,
                traces,
                messages,
                manages_endpoints: settings.managed_endpoints,
                observes_services: settings.observe_services,
                keys,
                pods,
                hook_places: HookPlaces::new(),
                leave_place: Arc::new(|| {}),
            },
            health,
        };
        Controller::new(parts).run(inbox, evidence, shutdown).await;
        leave.cancel();
        // The groups are to be released before the process ends. The keeper ends within a bound of its own.
        if keeper.await.is_err() {
            tracing::warn!("the session's task panicked; other replicas take over after the ttl");
        }
        ping.abort();
    }
}

fn start_watches(settings: &Settings, client: Client, clock: Clock, messages: mpsc::Sender<Message>) {
    let namespaces = settings.namespaces.clone();
    let other_slices = settings.managed_endpoints;
    let services = settings.managed_endpoints || settings.observe_services;
    watch::Watches { client, clock, namespaces, services, other_slices, messages }.start();
}

fn start_ping(
    settings: &Settings,
    client: Client,
    clock: Clock,
    fit: sync::watch::Sender<bool>,
    messages: mpsc::Sender<Message>,
) -> JoinHandle<()> {
    let (interval, patience) = (settings.retry_interval, settings.ttl * 2);
    tokio::spawn(watch::ping(client, clock, interval, patience, fit, messages))
}

/// The cluster's identity, as soon as the API server answers; `None` if the replica is to stop before that.
async fn identify(client: &Client, liveness: &Liveness, shutdown: &CancellationToken) -> Option<String> {
    let mut logged = None;
    loop {
        liveness.touch();
        let problem = match timeout(CALL_TIMEOUT, watch::cluster_uid(client)).await {
            Ok(Ok(uid)) => return Some(uid),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {CALL_TIMEOUT:?}"),
        };
        if logged.as_ref() != Some(&problem) {
            tracing::error!(
                problem,
                "the namespace kube-system cannot be read; check that the API server is up and that the operator's role \
                 allows `get` on it (the chart's does). Trying again"
            );
            logged = Some(problem);
        }
        tokio::select! {
            // In this order, so that a simulation can repeat a run.
            biased;
            () = shutdown.cancelled() => return None,
            () = sleep(START_PAUSE) => {}
        }
    }
}
