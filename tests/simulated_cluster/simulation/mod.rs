//! A run: several replicas, the cluster around them, and one seed that decides everything else.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use jiff::Timestamp;
use leadergroup_e2e::{
    history::{Checked, Deadline, Fault, History, Term, check},
    random::Random,
};
use leadergroup_lock::memory::{Call, End, Fate as DatabaseFate, MemoryDatabase};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api_server::{ApiServer, Clock, Dropped, Fate, Kind, Outcome, Refusal, RequestInfo},
    cluster::Cluster,
    faults::Effects,
    host::Host,
    log,
    network::Pods,
    recorded,
    replica::{Process, Surroundings},
    trace,
};

/// How long each machine runs before it is another one's turn. What they send each other arrives in the next turn.
const TURN: Duration = Duration::from_millis(5);
/// The nodes. There is a replica on each.
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// How late a call may be carried out, in milliseconds: its client has given it up by then.
const LATEST: usize = 20_000;
/// How often the lock's terms are recorded.
const TERMS: Duration = Duration::from_secs(1);

/// The ways to the API server and to the database. Clones are the same.
#[derive(Clone, Default)]
struct Ways(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// What replicas do not reach, by their names.
    cuts: BTreeMap<String, Cut>,
    storm: Storm,
    /// The kind of the fault that lets the answers to most writes of slices be lost, if there is one.
    slices: Option<&'static str>,
    effects: Effects,
}

/// What a replica does not reach, and the kind of the fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    pub kind: &'static str,
    pub api: bool,
    pub database: bool,
}

/// Which calls fail now and then: one in four. And the kind of the fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Storm {
    pub kind: &'static str,
    pub api: bool,
    pub database: bool,
}

impl Ways {
    fn of(&self, client: &str) -> (Cut, Storm) {
        let replica = client.split('/').next().unwrap_or_default();
        let state = self.0.lock();
        (state.cuts.get(replica).copied().unwrap_or_default(), state.storm)
    }

    /// The fault that the answer to this request may be lost by.
    fn loses_answer(&self, request: &RequestInfo) -> Option<&'static str> {
        let writes = request.kind == Kind::EndpointSlice && request.verb.writes();
        self.0.lock().slices.filter(|_| writes)
    }

    /// A fault of this kind has met a call.
    fn met(&self, kind: &'static str) {
        self.0.lock().effects.note(kind);
    }
}

/// The run.
pub struct Simulation {
    pub random: Random,
    pub api: ApiServer,
    pub database: MemoryDatabase,
    pub network: Pods,
    pub cluster: Cluster,
    pub replicas: Vec<Process>,
    /// For how long it has run.
    pub now: Duration,
    /// Which faults took effect.
    pub effects: Effects,
    world: Host,
    start: Instant,
    ways: Ways,
    terms: BTreeMap<(String, i64, String), Term>,
    faults: Vec<Fault>,
    /// How soon which active pods must be replaced.
    pub deadlines: Vec<Deadline>,
    /// How many replicas were started.
    started: u32,
}

impl Simulation {
    /// Three replicas that have not started, and groups of three pods.
    pub fn new(seed: u64, groups: usize) -> Self {
        let world = Host::new(0);
        let (ways, effects) = (Ways::default(), Effects::default());
        ways.0.lock().effects = effects.clone();
        let entered = world.handle().enter();
        let start = Instant::now();
        let api = ApiServer::new(Clock::starting_at(Timestamp::constant(1_800_000_000, 0)), seed);
        api.set_fates(fates(Random::new(seed ^ 1), ways.clone()));
        let database = MemoryDatabase::with_seed(seed);
        database.set_network(statements(Random::new(seed ^ 2), ways.clone()));
        let network = Pods::new(effects.clone());
        let cluster = Cluster::new(api.clone(), network.clone(), &NODES, groups, seed);
        drop(entered);
        let mut simulation = Self {
            random: Random::new(seed),
            api,
            database,
            network,
            cluster,
            replicas: Vec::new(),
            now: Duration::ZERO,
            world,
            start,
            ways,
            effects,
            terms: BTreeMap::new(),
            faults: Vec::new(),
            deadlines: Vec::new(),
            started: 0,
        };
        for node in NODES {
            simulation.start_replica(node);
        }
        simulation
    }

    /// Starts a replica on a node.
    pub fn start_replica(&mut self, node: &str) {
        self.started += 1;
        let name = format!("replica-{}", self.started);
        let drift = i64::try_from(self.random.below(401)).expect("a small number") - 200;
        let around = Surroundings {
            api: &self.api,
            database: &self.database,
            network: &self.network,
            world: self.world.handle(),
        };
        self.replicas.push(Process::start(&name, node, drift, &around));
    }

    /// Ends a replica in the middle of what it does, and starts another one on its node.
    pub fn kill_replica(&mut self, place: usize) {
        let killed = self.replicas.remove(place);
        self.ways.0.lock().cuts.remove(&killed.name);
        self.start_replica(&killed.node);
    }

    /// What a replica does not reach from now on.
    pub fn cut(&mut self, place: usize, cut: Cut) {
        self.ways.0.lock().cuts.insert(self.replicas[place].name.clone(), cut);
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
        self.ways.0.lock().storm = storm;
    }

    /// Lets most answers to writes of slices be lost from now on, because of a fault of this kind, or none.
    pub fn lose_answers_of_slices(&mut self, kind: Option<&'static str>) {
        self.ways.0.lock().slices = kind;
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

    pub fn stop_replicas_on(&mut self, node: &str) {
        for replica in self.replicas.iter_mut().filter(|it| it.node == node) {
            replica.host.stop();
        }
    }

    pub fn resume_replicas_on(&mut self, node: &str) {
        self.replicas.iter_mut().filter(|it| it.node == node).for_each(|it| it.host.resume());
    }

    /// Resumes a replica, or starts another one in its place if it was asked to stop. It may have been killed.
    pub fn resume_or_replace(&mut self, name: &str) {
        let Some(place) = self.replicas.iter().position(|it| it.name == name) else { return };
        if self.replicas[place].is_stopping() {
            self.kill_replica(place);
        } else {
            self.replicas[place].host.resume();
        }
    }

    /// A replica reaches everything from now on.
    pub fn reach(&mut self, name: &str) {
        self.ways.0.lock().cuts.remove(name);
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += TURN;
            log::set(self.now, "world");
            {
                let _entered = self.world.handle().enter();
                self.cluster.turn(self.now);
            }
            self.world.turn(TURN);
            for place in self.order() {
                log::set(self.now, &self.replicas[place].name);
                self.replicas[place].host.turn(TURN);
            }
            log::set(self.now, "world");
            if self.now.as_nanos().is_multiple_of(TERMS.as_nanos()) {
                self.record_terms();
            }
        }
    }

    /// An order of the replicas.
    fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.replicas.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.random.below(last + 1));
        }
        order
    }

    /// Faults may take terms out of the database.
    pub fn record_terms(&mut self) {
        for term in recorded::terms(&self.database) {
            self.terms.insert((term.key.clone(), term.token, term.grant.clone()), term);
        }
    }

    /// Everything that happened.
    pub fn history(&mut self) -> History {
        self.record_terms();
        let cluster = self.api.store().get(Kind::Namespace, "", "kube-system").map(|it| it.uid().to_owned());
        let terms = self.terms.values().cloned().collect();
        let history = recorded::history(&self.api, terms, &cluster.unwrap_or_default(), self.start);
        History { faults: Some(self.faults.clone()), deadlines: self.deadlines.clone(), ..history }
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

    pub fn trace(&self) -> Vec<String> {
        trace::trace(&self.api, self.start)
    }

    /// What the checker of the end-to-end tests says of it.
    pub fn checked(&mut self) -> Checked {
        assert_eq!(self.api.unsupported(), [""; 0], "requests that the simulated API server does not know");
        let history = self.history();
        let deadlines = Deadline::of_holders(self.deadlines.clone(), &check(&history).promotions);
        assert_eq!(deadlines.len(), self.deadlines.len(), "only pods that are active have deadlines");
        check(&History { deadlines, ..history })
    }
}

/// What becomes of requests to the API server: most take a few milliseconds, a few much longer, and in a storm some
/// fail.
fn fates(mut random: Random, ways: Ways) -> impl FnMut(&RequestInfo) -> Fate + Send {
    const FAILURES: [Outcome; 8] = [
        Outcome::Refused,
        Outcome::Failed(Refusal::TooManyRequests),
        Outcome::Failed(Refusal::Internal),
        Outcome::Failed(Refusal::Unavailable),
        Outcome::FailedAfterwards(Refusal::Timeout),
        Outcome::AnswerLost,
        Outcome::Hung,
        Outcome::HungAfterwards,
    ];
    const LOST: [Outcome; 3] =
        [Outcome::AnswerLost, Outcome::FailedAfterwards(Refusal::Timeout), Outcome::HungAfterwards];
    move |request| {
        let (cut, storm) = ways.of(&request.client);
        if cut.api {
            ways.met(cut.kind);
            return Fate { outcome: Outcome::Hung, ..Fate::default() };
        }
        let mut outcome = Outcome::Served;
        if let Some(kind) = ways.loses_answer(request)
            && random.below(4) > 0
        {
            ways.met(kind);
            outcome = LOST[random.below(LOST.len())].clone();
        } else if storm.api && random.below(4) == 0 {
            ways.met(storm.kind);
            match FAILURES.get(random.below(FAILURES.len() + 1)) {
                Some(failure) => outcome = failure.clone(),
                None => {
                    return Fate {
                        before: millis(&mut random, LATEST),
                        dropped: Dropped::CarriedOut,
                        ..Fate::default()
                    };
                }
            }
        }
        let (before, after) = (delay(&mut random), delay(&mut random));
        let dropped = if random.below(2) == 0 { Dropped::Cancelled } else { Dropped::CarriedOut };
        Fate { before, outcome, after, dropped }
    }
}

/// The same for statements.
fn statements(random: Random, ways: Ways) -> impl Fn(&Call<'_>) -> DatabaseFate + Send + Sync {
    const FAILURES: [End; 4] = [
        End::Broken { commits: false },
        End::Broken { commits: true },
        End::Silent { commits: false },
        End::Silent { commits: true },
    ];
    let random = Mutex::new(random);
    move |call| {
        let (cut, storm) = ways.of(call.client);
        if cut.database {
            ways.met(cut.kind);
            return DatabaseFate::HANGS;
        }
        let mut random = random.lock();
        let mut end = End::Answered;
        if storm.database && random.below(4) == 0 {
            ways.met(storm.kind);
            let Some(failure) = FAILURES.get(random.below(FAILURES.len() + 1)) else {
                let request = millis(&mut random, LATEST);
                return DatabaseFate { outlives: true, ..DatabaseFate::answered(request, Duration::ZERO) };
            };
            end = *failure;
        }
        let outlives = random.below(2) == 0;
        let (request, answer) = (delay(&mut random), delay(&mut random));
        DatabaseFate { end, outlives, ..DatabaseFate::answered(request, answer) }
    }
}

fn delay(random: &mut Random) -> Duration {
    let longest = if random.below(50) == 0 { 200 } else { 3 };
    millis(random, longest)
}

/// A number of milliseconds below this one.
fn millis(random: &mut Random, below: usize) -> Duration {
    Duration::from_millis(u64::try_from(random.below(below)).expect("a small number"))
}
