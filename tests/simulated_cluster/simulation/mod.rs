//! A run: several replicas, the cluster around them, and one seed that decides everything else.

mod databases;
mod replicas;
mod ways;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use jiff::SignedDuration;
use leadergroup::api::{ACTIVE_VALUE, ROLE_LABEL};
use leadergroup_e2e::{
    history::{self, Checked, Deadline, Fault, History, LateWrite, ObjectId, Term, Unanswered, check},
    random::Random,
};
use leadergroup_lock::memory::MemoryDatabase;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    api_server::{ApiServer, Clock, Kind, Object, WatchInfo},
    cluster::Cluster,
    edits::Edits,
    faults::Effects,
    host::Host,
    log,
    network::Pods,
    recorded,
    replica::Process,
    trace, wall_clock,
};
pub use ways::{Cut, Lost, Storm, millis};
use ways::{Ways, fates, statements};

/// How long each machine runs before it is another one's turn. What they send each other arrives in the next turn.
const TURN: Duration = Duration::from_millis(5);
/// The nodes. There is a replica on each.
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// For how long the operator waits for the answer to a write, and then until it writes again, with some slack.
const LONGEST_WRITE: Duration = Duration::from_secs(41);
/// The same for a read before a write, if it is the first that hangs.
const LONGEST_READ: Duration = Duration::from_secs(6);

/// The watches of a replica.
fn of_replica(name: &str) -> impl FnMut(&WatchInfo) -> bool {
    let client = format!("{name}/watches");
    move |watch| watch.client == client
}

/// The run.
pub struct Simulation {
    pub random: Random,
    pub api: ApiServer,
    pub database: MemoryDatabase,
    /// One that still acts as primary, and the locks in both when the present one began to.
    former: Option<(MemoryDatabase, [Value; 2])>,
    pub network: Pods,
    pub cluster: Cluster,
    pub replicas: Vec<Process>,
    /// For how long it has run.
    pub now: Duration,
    /// Which faults took effect.
    pub effects: Effects,
    /// What others have written in the operator's place.
    pub edits: Edits,
    seed: u64,
    /// Decides in which order machines have their turns.
    turns: Random,
    world: Host,
    start: Instant,
    pub ways: Ways,
    terms: BTreeMap<(String, i64, String), Term>,
    /// The grants of a database that acts as primary beside the present one, or did.
    grants_apart: BTreeSet<String>,
    faults: Vec<Fault>,
    /// How soon which active pods must be replaced.
    pub deadlines: Vec<Deadline>,
    /// How many replicas were started.
    started: u32,
}

impl Simulation {
    /// Three replicas that have not started, and groups of three pods.
    pub fn new(seed: u64, groups: usize) -> Self {
        Self::with_agents(seed, groups, None)
    }

    /// The same. The pods of one of the groups have agents.
    pub fn with_agents(seed: u64, groups: usize, supervised: Option<usize>) -> Self {
        let world = Host::new(0);
        let effects = Effects::default();
        let ways = Ways::new(&effects);
        let entered = world.handle().enter();
        let start = Instant::now();
        let api = ApiServer::new(Clock::starting_at(wall_clock::BEGINNING), seed);
        api.set_fates(fates(Random::new(seed ^ 1), ways.clone()));
        let database = MemoryDatabase::with_seed(seed);
        database.set_network(statements(Random::new(seed ^ 2), ways.clone()));
        let network = Pods::new(effects.clone());
        let cluster = Cluster::new(api.clone(), network.clone(), &NODES, (groups, supervised), seed);
        drop(entered);
        let mut simulation = Self {
            random: Random::new(seed),
            api,
            database,
            former: None,
            network,
            cluster,
            replicas: Vec::new(),
            now: Duration::ZERO,
            world,
            start,
            ways,
            effects,
            edits: Edits::default(),
            seed,
            turns: Random::new(seed ^ 4),
            terms: BTreeMap::new(),
            grants_apart: BTreeSet::new(),
            faults: Vec::new(),
            deadlines: Vec::new(),
            started: 0,
        };
        for node in NODES {
            simulation.start_replica(node);
        }
        simulation
    }

    /// What a replica does not reach from now on.
    pub fn cut(&mut self, place: usize, cut: Cut) {
        let name = &self.replicas[place].name;
        self.ways.cut(name, cut);
        self.api.set_silent(cut.api.silences(), of_replica(name));
    }

    /// Records that these pods may be replaced from now on, for these reasons.
    pub fn fault(&mut self, pods: Vec<String>, reasons: &[&str]) -> Range<usize> {
        let (first, from) = (self.faults.len(), recorded::moment(self.now));
        let reasons: Vec<String> = reasons.iter().map(|reason| (*reason).to_owned()).collect();
        let fault = |uid| Fault { uid, reasons: reasons.clone(), from, until: None };
        self.faults.extend(pods.into_iter().map(fault));
        first..self.faults.len()
    }

    /// Records that more pods may be replaced because of a fault that began earlier, until this time.
    pub fn fault_since(&mut self, recorded: usize, pods: Vec<String>, at: Duration) {
        let Some(first) = self.faults.get(recorded).cloned() else { return };
        let until = Some(recorded::moment(at));
        self.faults.extend(pods.into_iter().map(|uid| Fault { uid, until, ..first.clone() }));
    }

    /// Records when faults are over.
    pub fn fault_is_over(&mut self, which: Range<usize>, at: Duration) {
        let until = Some(recorded::moment(at));
        self.faults[which].iter_mut().for_each(|fault| fault.until = until);
    }

    /// Which calls may fail from now on.
    pub fn set_storm(&mut self, storm: Storm) {
        self.ways.set_storm(storm);
    }

    /// Lets writes to the API server arrive twice from now on, because of a fault of this kind, or none.
    pub fn repeat_writes(&mut self, kind: Option<&'static str>) {
        self.ways.repeat_writes(kind);
    }

    /// Lets most answers to writes of slices be lost from now on, because of a fault of this kind, or none.
    pub fn lose_answers_of_slices(&mut self, kind: Option<&'static str>) {
        self.ways.lose_answers_of_slices(kind);
    }

    pub fn any_replica(&mut self) -> usize {
        self.random.below(self.replicas.len())
    }

    pub fn any_group(&mut self) -> String {
        let groups = self.cluster.groups();
        groups[self.random.below(groups.len())].clone()
    }

    pub fn any_node(&mut self) -> String {
        let nodes = self.cluster.nodes();
        nodes[self.random.below(nodes.len())].clone()
    }

    pub fn any_pod(&mut self) -> Option<String> {
        let pods = self.cluster.pods();
        let place = self.random.below(pods.len());
        pods.into_iter().nth(place)
    }

    /// The names of the pods that are labelled active.
    pub fn active_pods(&self) -> Vec<String> {
        let store = self.api.store();
        let is_active = |pod: &&Arc<Object>| {
            pod.labels().is_some_and(|labels| labels.get(ROLE_LABEL) == Some(&ACTIVE_VALUE.into()))
        };
        let active = store.objects(Kind::Pod).values().filter(is_active);
        active.map(|pod| pod.key.name.clone()).collect()
    }

    /// A time below this one.
    pub fn millis(&mut self, below: Duration) -> Duration {
        millis(&mut self.random, usize::try_from(below.as_millis()).expect("not for ages"))
    }

    /// Does something by the clock of everything that is no replica.
    pub fn act<T>(&mut self, what: impl FnOnce(&mut Self) -> T) -> T {
        let world = self.world.handle().clone();
        let _entered = world.enter();
        what(self)
    }

    /// A replica reaches everything from now on.
    pub fn reach(&mut self, name: &str) {
        self.ways.open(name);
        self.api.set_silent(false, of_replica(name));
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += TURN;
            log::set(self.now, "world");
            wall_clock::set(self.now, SignedDuration::ZERO);
            {
                let _entered = self.world.handle().enter();
                self.cluster.turn(self.now);
            }
            self.world.turn(TURN);
            for place in self.order() {
                let replica = &mut self.replicas[place];
                log::set(self.now, &replica.name);
                wall_clock::set(self.now, replica.wall_clock_off);
                replica.host.turn(TURN);
            }
            self.remove_ended();
            log::set(self.now, "world");
        }
    }

    /// An order of the replicas.
    fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.replicas.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.turns.below(last + 1));
        }
        order
    }

    /// Everything that happened.
    pub fn history(&mut self) -> History {
        self.record_terms();
        let cluster = self.api.store().get(Kind::Namespace, "", "kube-system").map(|it| it.uid().to_owned());
        let terms = self.terms.values().cloned().collect();
        let cluster = cluster.unwrap_or_default();
        let history = recorded::history(&self.api, &self.edits, terms, &cluster, self.start);
        let objects: BTreeSet<_> = history.changes.iter().map(|change| &change.id).collect();
        let is_slice = |id: &&ObjectId| id.kind == history::Kind::EndpointSlice;
        let unanswered = self.ways.unanswered().into_iter().flat_map(|(kind, key, at)| {
            let from = recorded::moment(at.duration_since(self.start));
            // Before a slice is written, it is read, and so is the pod: any slice may wait for that one.
            let waits =
                |id: &&ObjectId| id.namespace == key.namespace && (kind == Kind::Pod || id.name == key.name);
            let waiting: Vec<_> = objects.iter().copied().filter(is_slice).filter(waits).cloned().collect();
            let until = from.plus(if kind == Kind::Pod { LONGEST_READ } else { LONGEST_WRITE });
            waiting.into_iter().map(move |slice| Unanswered { slice, from, until })
        });
        let unanswered = unanswered.collect();
        let late = self.ways.late_writes().into_iter().map(|(kind, key, at, by)| {
            let sent = recorded::moment(at.duration_since(self.start));
            let is_slice = kind == Kind::EndpointSlice;
            let kind = if is_slice { history::Kind::EndpointSlice } else { history::Kind::LeaderGroup };
            let object = ObjectId { kind, namespace: key.namespace, name: key.name };
            LateWrite { object, sent, until: sent.plus(by + 2 * TURN) }
        });
        let late = late.collect();
        let (faults, deadlines) = (Some(self.faults.clone()), self.deadlines.clone());
        let grants_apart = self.grants_apart.clone();
        History { faults, deadlines, grants_apart, unanswered, late, ..history }
    }

    /// The groups, the pods and the tables of the database as they are, for the report of a failure.
    pub fn state(&self) -> String {
        use std::fmt::Write as _;

        let (mut text, store) = (String::new(), self.api.store());
        for kind in [Kind::LeaderGroup, Kind::Pod, Kind::Service, Kind::EndpointSlice] {
            let field = if kind == Kind::EndpointSlice { "endpoints" } else { "status" };
            for object in store.objects(kind).values() {
                let (value, name) = (object.value(), &object.key.name);
                let _ = writeln!(text, "{name}: {} {}", value["metadata"]["labels"], value[field]);
            }
        }
        let _ = writeln!(text, "{:#}", self.database.dump());
        text
    }

    /// What is wrong with the programs under agents if nothing is left to do: one of each group runs, in the active
    /// pod.
    pub fn programs_at_rest(&self) -> Vec<String> {
        let (ledger, active) = (self.cluster.ledger(), self.active_pods());
        let mut found = Vec::new();
        for group in self.cluster.supervised_groups() {
            let running = ledger.running(group);
            if running.len() != 1 || !active.iter().any(|pod| pod == running[0]) {
                found.push(format!("programs of {group} run in {running:?}; {active:?} are active"));
            }
        }
        found
    }

    /// The edits of others that the operator has not corrected.
    pub fn uncorrected(&self) -> Vec<String> {
        let (mut veil, store) = (self.edits.veil(), self.api.store());
        store.journal().iter().for_each(|change| drop(veil.next(change)));
        veil.left()
    }

    pub fn trace(&self) -> Vec<String> {
        trace::trace(&self.api, self.start)
    }

    /// What the checker of the end-to-end tests says of it.
    pub fn checked(&mut self) -> Checked {
        assert_eq!(self.api.unsupported(), [""; 0], "requests that the simulated API server does not know");
        let history = self.history();
        self.judged(history)
    }

    /// The same of what was recorded until now.
    pub fn judged(&self, history: History) -> Checked {
        if self.deadlines.is_empty() {
            return check(&history);
        }
        let deadlines = Deadline::of_holders(self.deadlines.clone(), &check(&history).promotions);
        assert_eq!(deadlines.len(), self.deadlines.len(), "only pods that are active have deadlines");
        check(&History { deadlines, ..history })
    }
}
