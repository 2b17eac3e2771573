//! Pods whose program runs under an agent: the agent's real machine, on the clocks of a simulated node, with a
//! simulated program that starts and ends with delays.
//!
//! What the two processes of the agent do beside the machine is played here: the network process reads the
//! `LeaderGroup` ([`reads`]) and says what the supervisor has promised; the supervisor carries the machine's effects
//! out. All of it follows `agent/src/supervisor.rs` and `agent/src/network/reads.rs`.

mod clock;
mod ledger;
mod program;
mod reads;

use std::time::Duration;

use leadergroup_agent::{
    answer::Keys,
    contract::{Boot, Promise},
    machine::{Effect, Event, Machine, Settings},
    messages::State,
    network::{LastRead, Readiness, judge},
};
use leadergroup_e2e::random::Random;

use crate::network::Words;
pub use clock::Clock;
pub use ledger::Ledger;
pub use program::Habits;
use program::Program;
pub use reads::Access;
use reads::Reader;

/// How often an agent reads while no term of its pod is declared. The usual value of its `--interval`.
const INTERVAL: Duration = Duration::from_secs(3);
/// For how many intervals a standby that cannot read stays ready.
const FRESH_INTERVALS: u32 = 3;

/// What stands still of an agent, as by SIGSTOP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Still {
    #[default]
    Nothing,
    /// The process that talks to the network: nothing is read, and nobody gets an answer.
    Network,
    /// All processes of the container, the program among them.
    All,
}

/// What an agent lives in.
pub struct Around<'a> {
    pub ledger: &'a mut Ledger,
    /// Whether packets pass between its node and the API server.
    pub reaches: bool,
    /// The true time.
    pub now: Duration,
}

/// One start of an agent, in the container of a pod.
pub struct Agent {
    pod: String,
    group: String,
    keys: Keys,
    machine: Machine,
    clock: Clock,
    reader: Reader,
    habits: Habits,
    program: Option<Program>,
    still: Still,
    /// The container is being ended: nothing starts any more.
    leaves: bool,
    /// All processes of the container were killed, and are gone at this time.
    killed: Option<Duration>,
    /// What the network process says, and the promise that it is signed for.
    words: Option<(Promise, Words)>,
    random: Random,
}

/// A container has ended.
pub struct Ended {
    /// The message that the agent has left for the kubelet.
    pub message: String,
}

impl Agent {
    /// It starts. The seed decides its key, and how its program behaves.
    pub fn new(pod: &str, group: &str, clock: Clock, access: &Access, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let key = std::array::from_fn(|_| u8::try_from(random.below(256)).expect("below 256"));
        let keys = Keys::from_seed(&key).expect("any seed makes a key");
        let habits = Habits::any(&mut random);
        let settings =
            Settings { stop_timeout: habits.stop_timeout, lapse_timeout: Duration::from_millis(500) };
        Self {
            pod: pod.to_owned(),
            group: group.to_owned(),
            machine: Machine::new(keys.boot(), settings),
            keys,
            clock,
            reader: Reader::new(group, access, INTERVAL),
            habits,
            program: None,
            still: Still::Nothing,
            leaves: false,
            killed: None,
            words: None,
            random,
        }
    }

    pub fn boot(&self) -> Boot {
        self.keys.boot()
    }

    /// Whether it runs a program, and has not told it to end.
    pub fn works(&self) -> bool {
        self.program.is_some() && self.machine.ends().is_none() && !self.leaves
    }

    /// Lets processes stand still, or go on.
    pub fn stand_still(&mut self, still: Still, ledger: &mut Ledger, now: Duration) {
        let was = std::mem::replace(&mut self.still, still);
        match &self.program {
            Some(program) if still == Still::All => ledger.stands_still(program.id),
            Some(_) if was == Still::All => self.goes_on(ledger, now),
            _ => {}
        }
    }

    /// The program goes on, if its time is not up. Otherwise the supervisor kills it at once: what the program does
    /// before that is left to the fencing token, and does not count here.
    fn goes_on(&mut self, ledger: &mut Ledger, now: Duration) {
        self.step(&Event::Woke, ledger, now);
        if let Some(program) = self.program.as_ref().filter(|program| !program.is_killed()) {
            ledger.goes_on(program.id, now);
        }
    }

    /// The kubelet asks the container to end: SIGTERM.
    pub fn leave(&mut self, now: Duration) {
        self.leaves = true;
        self.forward_sigterm(now);
    }

    /// All of its processes are killed, and the container ends with them.
    pub fn kill(&mut self, now: Duration) {
        self.killed.get_or_insert(now + program::millis(&mut self.random, 20));
    }

    /// Its program ends by itself. Returns whether there is one that does not end anyway.
    pub fn end_program(&mut self, now: Duration) -> bool {
        self.program.as_mut().is_some_and(|program| program.exit(now))
    }

    /// Its programs ignore SIGTERM from now on.
    pub fn ignore_sigterm(&mut self) {
        self.habits.ignore_sigterm();
    }

    /// Whether the kubelet finds the pod ready.
    pub fn is_ready(&self, now: Duration) -> bool {
        let state =
            State { ends: self.machine.ends(), leaves: self.leaves, ..State::of(self.boot(), &self.machine) };
        let last: Option<&LastRead> = self.reader.last();
        match judge(&state, last, self.clock.moment(now), INTERVAL * FRESH_INTERVALS) {
            Readiness::CouldStart => true,
            Readiness::IfProgram(_) => self.program.as_ref().is_some_and(|program| program.is_ready(now)),
            Readiness::Not(_) => false,
        }
    }

    /// What the network process answers now. Nothing new if nothing has changed.
    pub fn says(&mut self, now: Duration) -> Option<Words> {
        let (promise, is_ready) = (self.machine.promise(), self.is_ready(now));
        if self.words.as_ref().is_some_and(|(of, words)| *of == promise && words.is_ready == is_ready) {
            return None;
        }
        let known = self.words.take().filter(|(of, _)| *of == promise).map(|(_, words)| words.answer);
        let sign = || serde_json::to_string(&self.keys.sign(promise)).expect("an answer is JSON");
        let words = Words { answer: known.unwrap_or_else(sign), is_ready };
        self.words = Some((promise, words.clone()));
        Some(words)
    }

    /// Does what is due.
    pub fn turn(&mut self, around: &mut Around<'_>) -> Option<Ended> {
        let now = around.now;
        if let Some(gone_at) = self.killed {
            return (now >= gone_at).then(|| self.ended(around.ledger));
        }
        if self.still == Still::All {
            return None;
        }
        self.end_in_time(around.ledger, now);
        if self.has_concluded(around.ledger, now) {
            return Some(self.ended(around.ledger));
        }
        if self.still == Still::Network {
            return None;
        }
        let sent_at = self.clock.moment(now);
        if let Some(read) = self.reader.turn(sent_at, around.reaches, now, &mut self.random)
            && !(self.leaves && self.program.is_none())
        {
            let event = Event::Read { sent_at: read.sent_at, shown: read.shown };
            self.step(&event, around.ledger, now);
        }
        None
    }

    fn end_in_time(&mut self, ledger: &mut Ledger, now: Duration) {
        if self.program.is_some() {
            self.step(&Event::Woke, ledger, now);
        }
    }

    fn step(&mut self, event: &Event, ledger: &mut Ledger, now: Duration) {
        for effect in self.machine.step(event, self.clock.moment(now)) {
            match effect {
                Effect::Start(token) => {
                    tracing::info!(pod = self.pod, token, "a program starts");
                    let id = ledger.started(&self.group, &self.pod, token, now);
                    self.program = Some(Program::new(id, &self.habits, now, &mut self.random));
                }
                Effect::Terminate(why) => {
                    tracing::info!(pod = self.pod, %why, "a program has to end");
                    self.forward_sigterm(now);
                }
                Effect::Kill(why) => {
                    tracing::info!(pod = self.pod, %why, "a program is killed");
                    if let Some(program) = &mut self.program {
                        program.kill(now, &mut self.random);
                    }
                }
            }
        }
    }

    fn forward_sigterm(&mut self, now: Duration) {
        if let Some(program) = &mut self.program {
            program.terminate(&self.habits, now, &mut self.random);
        }
    }

    /// Takes note of the end of the program and of all that it has left behind. Returns whether the container ends
    /// with it.
    fn has_concluded(&mut self, ledger: &mut Ledger, now: Duration) -> bool {
        let random = &mut self.random;
        if self.program.as_mut().is_some_and(|program| program.is_gone(now, random))
            && let Some(program) = self.program.take()
        {
            let had_to_end = self.machine.ends().is_some();
            tracing::info!(pod = self.pod, had_to_end, "a program has ended");
            ledger.ended(program.id);
            // All processes but the supervisor were killed, and the network process is started again.
            self.reader.start_again(now);
            self.step(&Event::Ended, ledger, now);
            return !had_to_end || self.leaves;
        }
        self.leaves && self.program.is_none()
    }

    fn ended(&mut self, ledger: &mut Ledger) -> Ended {
        if let Some(program) = self.program.take() {
            ledger.ended(program.id);
        }
        Ended { message: self.keys.termination_message() }
    }
}
