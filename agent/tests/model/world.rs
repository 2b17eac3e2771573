//! Everything together, in true time (microseconds): messages on their way, and what they do when they arrive.

use std::{cmp::Reverse, collections::BTreeMap, collections::BinaryHeap, time::Duration};

use leadergroup_agent::{
    contract::{Boot, Declared, Promise},
    machine::{Effect, Event},
    moment::Moment,
};

use crate::{
    agent::{Agent, Clock},
    broken::Rule,
    declaration::{Object, Store},
    random::Random,
    replica::{LONGEST, Replica},
};

const PODS: usize = 3;
const REPLICAS: usize = 2;
const SECOND: u64 = 1_000_000;
/// How long a schedule lasts.
const LASTS: u64 = 60 * SECOND;
/// How long a kill takes at most: a little less than the margin for it.
const LONGEST_KILL: u64 = SECOND * 49 / 100;
/// The leases that users choose.
const LEASES: [Duration; 2] = [Duration::from_secs(3), LONGEST];

/// Something that happens at a point in time.
#[allow(clippy::large_enum_variant, reason = "few messages are on their way at a time")]
enum What {
    /// A replica does something.
    Replica(usize),
    /// A replica begins a change of holder.
    FailsOver(usize),
    /// A replica has waited for as long as the former program may run.
    Clears(usize),
    /// An agent reads the declaration, as it does all the time.
    Reads(usize),
    /// Its watch shows a change, so it reads at once.
    Watch(usize),
    /// Its read reaches the API server.
    ReadArrives { agent: usize, sent_at: Moment },
    /// The answer reaches the agent.
    Answered { agent: usize, sent_at: Moment, shown: Option<Declared> },
    /// The agent's timer.
    Wakes(usize),
    /// A program ends, by itself or because it was told to.
    Exits { agent: usize, program: u64 },
    /// All of its processes were reaped.
    Reaped { agent: usize, program: u64 },
    /// An answer of the API server reaches a replica, with the time before it was asked.
    Received { replica: usize, object: Option<Object>, asked: u64 },
    /// A write reaches the API server. The replica may never learn of it.
    Write { replica: usize, expected: Object, next: Object, kind: Kind, asked: u64 },
    /// A replica's question reaches an agent.
    Asked { replica: usize, agent: usize },
    /// The agent's answer reaches the replica.
    Promised { replica: usize, promise: Promise },
    /// What the kubelets have reported reaches a replica.
    Reported { replica: usize, terminated: Vec<Boot>, replaced: Vec<Boot> },
    /// A fault, or what a user does.
    Fault,
    /// The group is made again.
    Created { uid: u64 },
}

/// What a replica does.
#[derive(Clone, Copy)]
enum Act {
    Nothing,
    Look,
    Ask,
    AskKubelets,
    Change,
    Clear,
    Stop,
    Switch,
    Hold,
    Release,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Declares,
    Clears,
    Changes,
}

struct Due {
    at: u64,
    number: u64,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

pub struct World {
    random: Random,
    broken: Option<Rule>,
    now: u64,
    queue: BinaryHeap<Reverse<Due>>,
    numbers: u64,
    store: Store,
    /// All starts of agents. Of each pod the last one is its present one.
    agents: Vec<Agent>,
    replicas: Vec<Replica>,
    /// The boots that the status of each pod names as terminated. Gone with the pod.
    terminated: Vec<Vec<Boot>>,
    /// Until when each pod cannot reach the API server.
    cut_until: [u64; PODS],
    /// The programs whose processes have not all ended, with the pod of each.
    running: BTreeMap<u64, usize>,
    /// The last program, and its pod.
    last: Option<usize>,
    reached: BTreeMap<(u64, i64), bool>,
    pub starts: u64,
    pub terms: u64,
    pub changes_of_program: u64,
    pub violation: Option<String>,
}

impl World {
    pub fn new(seed: u64, broken: Option<Rule>) -> Self {
        let mut random = Random::new(seed);
        let replicas = (0..REPLICAS).map(|_| Replica::new(Clock::bent(&mut random))).collect();
        let mut world = Self {
            random,
            broken,
            now: SECOND,
            queue: BinaryHeap::new(),
            numbers: 0,
            store: Store::default(),
            agents: Vec::new(),
            replicas,
            terminated: vec![Vec::new(); PODS],
            cut_until: [0; PODS],
            running: BTreeMap::new(),
            last: None,
            reached: BTreeMap::new(),
            starts: 0,
            terms: 0,
            changes_of_program: 0,
            violation: None,
        };
        world.store.write(world.now, Some(Object { uid: 1, declaration: None }));
        (0..PODS).for_each(|pod| world.boot(pod));
        (0..REPLICAS).for_each(|replica| world.later(SECOND / 4, What::Replica(replica)));
        world.later(3 * SECOND, What::Fault);
        world
    }

    /// How many of the declared terms have started a program.
    pub fn reached(&self) -> u64 {
        self.reached.values().filter(|reached| **reached).count() as u64
    }

    pub fn play(&mut self) {
        while let Some(Reverse(due)) = self.queue.pop() {
            if due.at > LASTS || self.violation.is_some() {
                return;
            }
            self.now = due.at;
            self.happens(due.what);
        }
    }

    fn at(&mut self, at: u64, what: What) {
        self.numbers += 1;
        self.queue.push(Reverse(Due { at, number: self.numbers, what }));
    }

    /// Within this time, seldom much later, and sometimes never.
    fn later(&mut self, within: u64, what: What) {
        let delay = self.random.below(within) + 1;
        let delay = if self.random.one_in(10) { delay * 20 } else { delay };
        self.at(self.now + delay, what);
    }

    /// A message, which may be lost.
    fn send(&mut self, what: What) {
        if !self.random.one_in(20) {
            self.later(SECOND / 50, what);
        }
    }

    fn commit(&mut self, object: Option<Object>) {
        self.store.write(self.now, object);
        for agent in 0..self.agents.len() {
            self.send(What::Watch(agent));
        }
    }

    fn boot(&mut self, pod: usize) {
        let number = self.agents.len() as u64;
        let former = self.agents.iter().rev().find(|agent| agent.pod == pod).map(|agent| agent.boot);
        let boot = match former.filter(|_| self.broken == Some(Rule::FreshBoot)) {
            Some(boot) => boot,
            None => Boot::new(std::array::from_fn(|index| number.to_le_bytes()[index % 8])),
        };
        let agent = Agent::new(boot, pod, &mut self.random);
        self.agents.push(agent);
        self.later(SECOND, What::Reads(self.agents.len() - 1));
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Replica(replica) => {
                self.later(SECOND / 4, What::Replica(replica));
                let act = self.choose(replica);
                self.replica_acts(replica, act);
            }
            What::Clears(replica) => self.replica_acts(replica, Act::Clear),
            What::FailsOver(replica) => self.replica_acts(replica, Act::Change),
            What::Reads(agent) => {
                if !self.agents[agent].ended {
                    self.later(2 * SECOND, What::Reads(agent));
                }
                self.reads(agent);
            }
            What::Watch(agent) => self.reads(agent),
            What::ReadArrives { agent, sent_at } => {
                let behind =
                    if self.broken == Some(Rule::QuorumRead) { self.random.below(3 * SECOND) } else { 0 };
                let object = self.store.cached(self.now.saturating_sub(behind));
                let shown = object.and_then(|object| object.declaration).map(|it| it.declared());
                self.send(What::Answered { agent, sent_at, shown });
            }
            What::Answered { agent, sent_at, shown } => {
                let late = self.broken == Some(Rule::CountsFromSending);
                let sent_at = if late { self.agents[agent].clock.moment(self.now) } else { sent_at };
                self.step(agent, &Event::Read { sent_at, shown });
            }
            What::Wakes(agent) => self.step(agent, &Event::Woke),
            What::Exits { agent, program } => self.exits(agent, program),
            What::Reaped { agent, program } => {
                self.running.remove(&program);
                if self.broken != Some(Rule::Reaped) && self.agents[agent].program == Some(program) {
                    self.agents[agent].program = None;
                    self.step(agent, &Event::Ended);
                }
            }
            What::Received { replica, object, asked } => self.received(replica, object, asked),
            What::Write { replica, expected, next, kind, asked } => {
                self.write(replica, &expected, next, kind, asked);
            }
            What::Asked { replica, agent } => {
                if !self.agents[agent].ended {
                    let promise = self.agents[agent].machine.promise();
                    self.send(What::Promised { replica, promise });
                }
            }
            What::Promised { replica, promise } => self.replicas[replica].promised(promise),
            What::Reported { replica, terminated, replaced } => {
                self.replicas[replica].terminated(terminated);
                self.replicas[replica].replaced(replaced);
            }
            What::Fault => self.fault(),
            What::Created { uid } => self.commit(Some(Object { uid, declaration: None })),
        }
    }

    fn received(&mut self, replica: usize, object: Option<Object>, asked: u64) {
        let at = if self.broken == Some(Rule::CountsFromReceipt) { asked } else { self.now };
        self.replicas[replica].receive(object, at);
        // It clears as soon as it may.
        if let Some(due) = self.replicas[replica].clears_at(self.broken) {
            self.at(due.max(self.now), What::Clears(replica));
        }
    }

    fn reads(&mut self, agent: usize) {
        if self.agents[agent].ended {
            return;
        }
        let sent_at = self.agents[agent].clock.moment(self.now);
        if self.now >= self.cut_until[self.agents[agent].pod] {
            self.send(What::ReadArrives { agent, sent_at });
        }
    }

    fn step(&mut self, number: usize, event: &Event) {
        let agent = &mut self.agents[number];
        if agent.ended {
            return;
        }
        let effects = agent.step(event, self.now);
        for effect in effects {
            match effect {
                Effect::Start(token) => self.starts(number, token),
                Effect::Terminate(_) => {
                    if let (Some(program), Some(after)) =
                        (self.agents[number].program, self.agents[number].obeys)
                    {
                        self.at(self.now + after, What::Exits { agent: number, program });
                    }
                }
                Effect::Kill(_) => {
                    if let Some(program) = self.agents[number].program {
                        self.ends(number, program);
                    }
                }
            }
        }
        let agent = &self.agents[number];
        if let Some(after) = agent.machine.wake_after(agent.clock.moment(self.now)) {
            self.at(self.now + agent.clock.true_time(after), What::Wakes(number));
        }
    }

    fn starts(&mut self, number: usize, token: i64) {
        let (pod, boot) = (self.agents[number].pod, self.agents[number].boot);
        if let Some((_, other)) = self.running.first_key_value() {
            let at = self.now;
            self.violation = Some(format!("at {at}: pod {pod} starts under {token} while pod {other} runs"));
        }
        self.starts += 1;
        self.changes_of_program += u64::from(self.last.is_some_and(|last| last != pod));
        self.last = Some(pod);
        self.numbers += 1;
        let program = self.numbers;
        self.running.insert(program, pod);
        self.agents[number].program = Some(program);
        let object = self.store.now();
        let declared = object.as_ref().and_then(|object| object.declaration.as_ref());
        if let (Some(object), Some(declared)) = (&object, declared)
            && declared.run.as_ref().is_some_and(|run| run.boot == boot)
        {
            self.reached.insert((object.uid, declared.token), true);
        }
        if self.random.one_in(6) {
            self.later(10 * SECOND, What::Exits { agent: number, program });
        }
    }

    /// The program itself ends. A process that it has left behind may go on for a while.
    fn exits(&mut self, agent: usize, program: u64) {
        if self.agents[agent].program != Some(program) || !self.running.contains_key(&program) {
            return;
        }
        if self.broken == Some(Rule::Reaped) {
            self.agents[agent].program = None;
            self.step(agent, &Event::Ended);
        }
        let lingers = if self.random.one_in(3) { SECOND } else { SECOND / 50 };
        let after = self.random.below(lingers);
        self.at(self.now + after, What::Reaped { agent, program });
    }

    /// All processes of the program are killed, as soon as the supervisor gets the CPU.
    fn ends(&mut self, agent: usize, program: u64) {
        let after = if self.random.below(4) > 0 { LONGEST_KILL } else { self.random.below(SECOND / 50) };
        self.at(self.now + after, What::Reaped { agent, program });
    }

    fn write(&mut self, replica: usize, expected: &Object, next: Object, kind: Kind, asked: u64) {
        let careless = match kind {
            Kind::Declares => self.broken == Some(Rule::DeclareComparesAndSets),
            Kind::Clears => self.broken == Some(Rule::ClearComparesAndSets),
            Kind::Changes => false,
        };
        let Some(now) = self.store.now() else { return };
        if now != *expected && !(careless && now.uid == expected.uid) {
            return;
        }
        let declared = next.declaration.as_ref().filter(|declared| declared.run.is_some());
        if let Some(declared) = declared.filter(|_| kind == Kind::Declares) {
            self.terms += 1;
            self.reached.entry((next.uid, declared.token)).or_insert(false);
        }
        self.commit(Some(next.clone()));
        self.send(What::Received { replica, object: Some(next), asked });
    }

    /// What a replica does next. Most terms last long enough to start a program.
    fn choose(&mut self, replica: usize) -> Act {
        let waits = |object: &Object| {
            let run = object.declaration.as_ref().and_then(|declared| declared.run.as_ref());
            run.is_some_and(|run| !run.cleared)
        };
        if self.replicas[replica].seen.as_ref().is_some_and(waits) && self.random.one_in(2) {
            return Act::Clear;
        }
        match (self.random.below(32), self.random.below(16)) {
            (0..8, _) => Act::Look,
            (8..14, _) => Act::Ask,
            (14..18, _) => Act::AskKubelets,
            (18..24, _) => Act::Switch,
            (24..27, _) => Act::Release,
            (27, 0) => Act::Change,
            (28 | 29, 0) => Act::Stop,
            (30, 0) => Act::Hold,
            (31, 0) => Act::Off,
            _ => Act::Nothing,
        }
    }

    fn replica_acts(&mut self, number: usize, act: Act) {
        let (broken, asked) = (self.broken, self.now);
        let target = self.random.index(PODS);
        let agent = self.agents.iter().rposition(|agent| agent.pod == target && !agent.ended);
        let boot = agent.map(|agent| self.agents[agent].boot);
        let more = i64::try_from(self.random.below(2)).unwrap();
        let hold = self.numbers.to_string();
        let lease = LEASES[self.random.index(LEASES.len())];
        let replica = &self.replicas[number];
        let (written, kind) = match act {
            Act::Nothing => return,
            Act::Look => return self.look(number),
            Act::Ask => {
                let Some(agent) = agent else { return };
                return self.send(What::Asked { replica: number, agent });
            }
            Act::AskKubelets => return self.ask_kubelets(number),
            Act::Change => (boot.and_then(|boot| replica.change(boot, lease, more, broken)), Kind::Declares),
            Act::Switch => (boot.and_then(|boot| replica.switch(boot, lease, broken)), Kind::Declares),
            Act::Off => (replica.off(broken), Kind::Declares),
            Act::Clear => (replica.clear(asked, broken), Kind::Clears),
            Act::Stop => (replica.stop(), Kind::Changes),
            Act::Hold => (replica.hold(Some(hold)), Kind::Changes),
            Act::Release => (replica.hold(None), Kind::Changes),
        };
        if let Some((expected, next)) = written {
            self.send(What::Write { replica: number, expected, next, kind, asked });
        }
    }

    /// A quorum read.
    fn look(&mut self, replica: usize) {
        let (object, asked) = (self.store.now(), self.now);
        self.send(What::Received { replica, object, asked });
    }

    /// The pods as the API server shows them.
    fn ask_kubelets(&mut self, replica: usize) {
        let terminated = match self.broken {
            // Whatever terminated container stands there, it is taken for the one that was declared.
            Some(Rule::TerminatedBoot) => {
                let replaced = |pod: &usize| !self.terminated[*pod].is_empty();
                let pods: Vec<usize> = (0..PODS).filter(replaced).collect();
                self.agents.iter().filter(|it| pods.contains(&it.pod)).map(|it| it.boot).collect()
            }
            _ => self.terminated.concat(),
        };
        let present: Vec<Boot> = (0..PODS)
            .filter_map(|pod| self.agents.iter().rev().find(|it| it.pod == pod))
            .map(|it| it.boot)
            .collect();
        let replaced =
            self.agents.iter().map(|agent| agent.boot).filter(|boot| !present.contains(boot)).collect();
        self.send(What::Reported { replica, terminated, replaced });
    }

    fn fault(&mut self) {
        self.later(6 * SECOND, What::Fault);
        let pod = self.random.index(PODS);
        match self.random.below(8) {
            // It is cut off. Another pod is to take over, while its program still runs.
            4.. => {
                self.cut_until[pod] = self.now + self.random.below(20 * SECOND);
                let replica = self.random.index(REPLICAS);
                self.later(SECOND / 5, What::FailsOver(replica));
            }
            // The container ends, and is started again.
            0 | 1 => {
                let Some(number) = self.agents.iter().rposition(|agent| agent.pod == pod && !agent.ended)
                else {
                    return;
                };
                let agent = &mut self.agents[number];
                agent.ended = true;
                if let Some(program) = agent.program.take() {
                    self.running.remove(&program);
                }
                let boot = self.agents[number].boot;
                self.terminated[pod].push(boot);
                self.boot(pod);
            }
            // The pod is deleted by force: its processes run on, and another pod takes its place.
            2 => {
                self.terminated[pod].clear();
                self.boot(pod);
            }
            // The group is deleted and made again.
            3 if self.random.one_in(3) => {
                let Some(Object { uid, .. }) = self.store.now() else { return };
                let uid = uid + 1;
                self.commit(None);
                self.later(SECOND, What::Created { uid });
            }
            3 => {}
        }
    }
}
