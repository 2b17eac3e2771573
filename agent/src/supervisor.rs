//! The supervisor: process 1 of the container. It runs the program, and ends it in time.
//!
//! It has one thread, keeps its memory from being swapped out where it may, and waits for nothing but time, signals and
//! the network process. So a network that hangs, or a network process that was stopped or killed, cannot prolong the
//! life of the program. Because it is process 1, the kernel gives it all orphans to reap, `kill(-1)` reaches every
//! other process of the container, and if it ends itself, the kernel kills all of them.

mod children;
mod network_process;
mod signals;

use std::{ffi::OsString, fs, io, path::PathBuf, time::Duration};

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{DumpableBehavior, Pid, Signal, getpid, set_dumpable_behavior},
};

use crate::{
    answer::{Keys, NoKeys},
    log::{self, say},
    machine::{Effect, Event, Machine, Settings},
    messages::{Counts, State, ToNetwork, ToSupervisor},
    moment::Moment,
};
use children::Program;
use network_process::NetworkProcess;
use signals::Signals;

/// The longest wait while a program runs. A wait is measured by a clock that stands still while the machine is
/// suspended, and that is slewed: the end of a lease must not be slept through.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// The pause before the network process is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// What to supervise.
#[derive(Clone, Debug)]
pub struct Supervised {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The arguments of the network process.
    pub network: Vec<OsString>,
    /// The full name of the group, for the program.
    pub group: String,
    /// The pod, for the program.
    pub pod: String,
    /// How the program is ended.
    pub settings: Settings,
    /// Where the kubelet reads the message of a container that has terminated.
    pub termination_log: PathBuf,
}

/// Why nothing can be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// It is not process 1.
    #[error(
        "the agent must be process 1 of its container, and is process {0}: run it as the container's entrypoint, not \
         from a shell, and without shareProcessNamespace. Otherwise it could not end all processes of the program"
    )]
    NotFirst(i32),
    /// No key.
    #[error(transparent)]
    Keys(#[from] NoKeys),
    /// The message for the kubelet could not be written.
    #[error(
        "{path} cannot be written: {source}; set --termination-log to the container's terminationMessagePath"
    )]
    TerminationLog {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Signals, sockets or processes.
    #[error("the system refused {what}: {source}; check the container's limits of processes and open files")]
    System {
        /// What for.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

struct Supervisor {
    supervised: Supervised,
    keys: Keys,
    machine: Machine,
    /// The lock's key, for the program.
    key: String,
    network: Option<NetworkProcess>,
    /// When the network process may be started again.
    restart_at: Option<Moment>,
    program: Option<Program>,
    signals: Signals,
    /// The container is being ended: nothing starts any more.
    leaves: bool,
    counts: Counts,
    told: State,
}

/// Runs until the program has ended by itself or the container is ended. Returns the exit status.
pub fn run(supervised: Supervised) -> Result<u8, SupervisorError> {
    let own = getpid();
    if own != Pid::INIT {
        return Err(SupervisorError::NotFirst(own.as_raw_nonzero().get()));
    }
    // Before anything else: until then the kernel discards SIGTERM, and the container would be killed in the end.
    let signals = Signals::receive().map_err(|source| SupervisorError::System { what: "signals", source })?;
    log::open();
    let keys = Keys::generate()?;
    // No process with the same user can read the key.
    let undumpable = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    undumpable.map_err(system("to protect the agent's memory"))?;
    // Without the right to lock so much memory, the supervisor may have to wait for its pages. It reads the clocks
    // after that.
    let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    let path = &supervised.termination_log;
    let written = fs::write(path, keys.termination_message());
    written.map_err(|source| SupervisorError::TerminationLog { path: path.clone(), source })?;
    say(&format!("this start is {}; waiting for the authority to run the program", keys.boot()));
    let supervisor = Supervisor {
        machine: Machine::new(keys.boot(), supervised.settings),
        keys,
        supervised,
        key: String::new(),
        network: None,
        restart_at: None,
        program: None,
        signals,
        leaves: false,
        counts: Counts::default(),
        told: State::default(),
    };
    supervisor.supervise()
}

impl Supervisor {
    fn supervise(mut self) -> Result<u8, SupervisorError> {
        loop {
            self.start_network();
            self.wait().map_err(|source| SupervisorError::System { what: "to wait", source })?;
            self.take_signals();
            self.take_messages();
            self.reap()?;
            self.step(&Event::Woke);
            if let Some(status) = self.conclude() {
                return Ok(status);
            }
            if self.leaves && self.program.is_none() {
                return Ok(0);
            }
            self.tell();
        }
    }

    /// Waits for a signal, a message or the machine's timer.
    fn wait(&self) -> io::Result<()> {
        let now = Moment::now();
        let restart = self.restart_at.map(|at| now.until(at));
        let longest = self.program.as_ref().map(|_| LONGEST_WAIT);
        let timeout = [self.machine.wake_after(now), restart, longest].into_iter().flatten().min();
        network_process::wait(&self.signals, self.network.as_ref(), timeout)
    }

    /// Starts the network process, unless there is one. If that fails, the program runs for the rest of its lease.
    fn start_network(&mut self) {
        let now = Moment::now();
        if self.network.is_some() || self.leaves || self.restart_at.is_some_and(|at| !now.is_past(at)) {
            return;
        }
        match NetworkProcess::start(&self.supervised.network) {
            Ok(network) => {
                self.network = Some(network);
                (self.restart_at, self.told) = (None, State::default());
            }
            Err(error) => {
                say(&format!("the network process cannot be started; trying again: {error}"));
                self.restart_at = Some(now.after(RESTART_PAUSE));
            }
        }
    }

    fn take_signals(&mut self) {
        for signal in self.signals.take() {
            self.leaves |= matches!(signal, Signal::TERM | Signal::INT | Signal::QUIT);
            if let Some(program) = &self.program {
                program.send(signal);
            }
        }
    }

    fn take_messages(&mut self) {
        let Some(network) = &mut self.network else { return };
        let messages = network.receive();
        // While the container is being ended, nothing starts: reads may only let the program end in order.
        if self.leaves && self.program.is_none() {
            return;
        }
        for message in messages {
            match message {
                ToSupervisor::Read { sent_at, key, shown } => {
                    self.key = key.unwrap_or_default();
                    self.step(&Event::Read { sent_at, shown });
                }
                ToSupervisor::Ask { id } => {
                    let answer = self.keys.sign(self.machine.promise());
                    self.send(&ToNetwork::Answer { id, answer });
                }
            }
        }
    }

    /// Sends the network process a message. Returns whether it was sent.
    fn send(&mut self, message: &ToNetwork) -> bool {
        self.network.as_mut().is_some_and(|network| network.send(message))
    }

    fn step(&mut self, event: &Event) {
        for effect in self.machine.step(event, Moment::now()) {
            match effect {
                Effect::Start(token) => self.start(token),
                Effect::Terminate(why) => {
                    if let Some(program) = &self.program {
                        program.send(Signal::TERM);
                    }
                    say(&format!("the program has to end: {why}"));
                }
                Effect::Kill(why) => {
                    self.counts.kills += 1;
                    self.end_all();
                    say(&format!("the program had not ended in time and was killed: {why}"));
                }
            }
        }
    }

    fn start(&mut self, token: i64) {
        self.counts.starts += 1;
        let Supervised { command, group, pod, .. } = &self.supervised;
        let environment = [
            ("TOKEN", token.to_string()),
            ("KEY", self.key.clone()),
            ("GROUP", group.clone()),
            ("POD", pod.clone()),
        ];
        match Program::start(command, &environment) {
            Ok(program) => {
                say(&format!("the program runs with token {token}"));
                self.program = Some(program);
            }
            Err(error) => {
                say(&format!(
                    "{} cannot be run: {error}; check its name, PATH and permissions",
                    command[0].display()
                ));
                self.program = Some(Program::failed(children::status_of(&error)));
            }
        }
    }

    /// Notes which processes have ended.
    fn reap(&mut self) -> Result<(), SupervisorError> {
        while let Some(ended) = children::reap().map_err(system("to wait for processes"))? {
            if let Some(network) = self.network.take_if(|network| network.id() == ended.process) {
                network.ended();
                self.restart_at = Some(Moment::now().after(RESTART_PAUSE));
            }
            if let Some(program) = &mut self.program {
                program.note(ended);
            }
        }
        Ok(())
    }

    /// If the program has ended, ends all that it has left behind. Returns the exit status of the agent, if the program
    /// was not told to end or the container is being ended.
    fn conclude(&mut self) -> Option<u8> {
        let status = self.program.as_ref()?.status()?;
        let ends = self.machine.ends();
        if let Some(why) = ends {
            self.counts.ended(why, Some(status));
        }
        self.end_all();
        self.program = None;
        say(&format!("the program has ended with status {status}"));
        self.step(&Event::Ended);
        (ends.is_none() || self.leaves).then_some(status)
    }

    /// Kills all processes, the network process among them, and returns when none is left.
    fn end_all(&mut self) {
        self.network = None;
        let ended = children::kill_all();
        if let Some(program) = &mut self.program {
            for ended in ended {
                program.note(ended);
            }
        }
    }

    fn tell(&mut self) {
        let state = State {
            ends: self.machine.ends(),
            leaves: self.leaves,
            counts: self.counts.clone(),
            ..State::of(self.keys.boot(), &self.machine)
        };
        if state != self.told && self.send(&ToNetwork::State(state.clone())) {
            self.told = state;
        }
    }
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> SupervisorError {
    move |error| SupervisorError::System { what, source: error.into() }
}
