//! A replica of the operator as a process on a machine of its own: the whole program, from its watches to its writes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use leadergroup::{
    config::{Settings, Sources},
    health::Prober,
    operator::{ApiServer as Connections, Replica},
};
use leadergroup_lock::{
    Clock,
    memory::{MemoryClient, MemoryDatabase},
};
use tokio::{runtime::Handle, sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{api_server::ApiServer, host::Host, network::Pods, wall_clock, wire};

/// How many probes may be under way, and how many of their events.
const PROBES: usize = 256;

/// What a replica works with.
pub struct Surroundings<'a> {
    pub api: &'a ApiServer,
    pub database: &'a MemoryDatabase,
    pub network: &'a Pods,
    /// The runtime of everything that is no replica.
    pub world: &'a Handle,
}

/// A replica that runs.
pub struct Process {
    pub name: String,
    pub node: String,
    pub host: Host,
    /// Its way to the database.
    pub lock: MemoryClient,
    /// By how much its time of day was set.
    pub wall_clock_off: SignedDuration,
    shutdown: CancellationToken,
    program: JoinHandle<()>,
    /// It leaves its place to another one.
    pub leaving: Option<Leaving>,
}

/// A replica that leaves.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// The revision at which it was asked to stop.
    pub revision: u64,
    /// The kind of the fault that has taken effect if it writes after that.
    pub kind: Option<&'static str>,
}

impl Process {
    /// Starts a replica on a node, on a machine whose clock gains this many microseconds per second.
    pub fn start(name: &str, node: &str, rate_ppm: i32, around: &Surroundings<'_>) -> Self {
        let host = Host::new(rate_ppm);
        let process = host.handle().clone();
        let _entered = process.enter();
        let clock = Clock::simulated(0, Duration::ZERO).counting(host.suspended());
        let lock = MemoryClient::new(around.database, name).with_clock(clock);
        let store = lock.store().expect("the address of a database in memory is valid");
        let client = |lane: &str| wire::client(around.api, &format!("{name}/{lane}"), around.world, &process);
        let connections = Connections {
            changes: client("changes"),
            background: client("background"),
            watches: client("watches"),
        };
        let (events, evidence) = mpsc::channel(PROBES);
        let network = Arc::new(around.network.from(node, around.world));
        let prober = Prober::simulated(network, store.clock(), events, PROBES);
        let replica = Replica::new(settings(name, node), connections, store, (prober, evidence));
        let replica = replica.with_wall_clock(wall_clock::shows);
        let shutdown = CancellationToken::new();
        let program = process.spawn(replica.run(shutdown.clone()));
        let (name, node) = (name.to_owned(), node.to_owned());
        let wall_clock_off = SignedDuration::ZERO;
        Self { name, node, host, lock, wall_clock_off, shutdown, program, leaving: None }
    }

    pub fn is_stopping(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    pub fn has_ended(&self) -> bool {
        self.program.is_finished()
    }

    /// Asks it to stop, as by SIGTERM.
    pub fn ask_to_stop(&self) {
        self.shutdown.cancel();
    }
}

/// The settings of a replica on a node.
pub fn settings(name: &str, node: &str) -> Settings {
    let flags = BTreeMap::from([
        ("replica", name.to_owned()),
        ("node", node.to_owned()),
        ("managedEndpoints", "true".to_owned()),
        ("observeServices", "true".to_owned()),
        ("database.url", "postgres://program@memory/memory".to_owned()),
    ]);
    Settings::load(&Sources { flags, ..Sources::default() }).expect("the settings are valid")
}
