//! When the program starts and when it has to end. Reads of the declaration and the end of the program go in, starts
//! and signals come out.
//!
//! The proof that two programs never run at the same moment rests on four properties of this machine:
//!
//! 1. A program runs at `x` under token *n* only if a quorum read that was *sent* at `x - lease` or later showed *n*,
//!    cleared, with this boot and without a hold.
//! 2. No term starts twice: the end of a program raises the floor above its token.
//! 3. The floor never falls, as long as the process lives, and nothing below it starts.
//! 4. [`Machine::promise`] says only what stays true forever: the floor, and that nothing runs below it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    contract::{Boot, Declared, LONGEST_LEASE, Promise},
    moment::Moment,
};

/// How the program is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long after SIGTERM the program is killed.
    pub stop_timeout: Duration,
    /// How long before the end of its lease it gets SIGTERM, at most a quarter of the lease. It is killed at the end of
    /// its lease.
    pub lapse_timeout: Duration,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A quorum read was answered.
    Read {
        /// The time before it was sent.
        sent_at: Moment,
        /// What it showed; none if there is no `LeaderGroup`, or it declares no term.
        shown: Option<Declared>,
    },
    /// The program has ended, and all processes that it had started. Or it could not be started.
    Ended,
    /// Time has passed.
    Woke,
}

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start the program, with this token. -> [`Event::Ended`]
    Start(i64),
    /// Send it SIGTERM.
    Terminate(Why),
    /// Kill all processes but the supervisor, again and again until none is left.
    Kill(Why),
}

/// Why a program has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// Another term was declared.
    Superseded,
    /// The `LeaderGroup` is gone, or declares no program.
    Gone,
    /// Another pod will take over as planned.
    Planned,
    /// Its authority could not be read for almost one lease.
    Lapsed,
}

/// The decisions of one start of the agent.
#[derive(Clone, Debug)]
pub struct Machine {
    boot: Boot,
    settings: Settings,
    /// Nothing starts under a token below this one. It never falls.
    floor: i64,
    /// When the latest read that was taken into account was sent.
    read_at: Option<Moment>,
    program: Option<Program>,
}

/// A program that was started and has not ended.
#[derive(Clone, Debug)]
struct Program {
    token: i64,
    /// The end of its lease.
    deadline: Moment,
    /// How long before that it gets SIGTERM.
    lapse_timeout: Duration,
    stopping: Option<Stopping>,
}

/// A program that was told to end.
#[derive(Clone, Copy, Debug)]
struct Stopping {
    since: Moment,
    why: Why,
    killed: bool,
}

impl Machine {
    /// A machine that has read nothing.
    pub const fn new(boot: Boot, settings: Settings) -> Self {
        Self { boot, settings, floor: 0, read_at: None, program: None }
    }

    /// Takes an event into account, and returns what is to be done, in this order.
    #[must_use]
    pub fn step(&mut self, event: &Event, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Read { sent_at, shown } => self.read(*sent_at, shown.as_ref(), now, &mut effects),
            Event::Ended => self.ended(),
            Event::Woke => {}
        }
        self.end_in_time(now, &mut effects);
        effects
    }

    /// After which time [`Event::Woke`] is due.
    pub fn wake_after(&self, now: Moment) -> Option<Duration> {
        let program = self.program.as_ref()?;
        let lapses = program.deadline.before(program.lapse_timeout);
        Some(match program.stopping {
            None => now.until(lapses),
            Some(Stopping { killed: true, .. }) => return None,
            Some(Stopping { since, .. }) => {
                now.until(program.deadline).min(now.until(since.after(self.settings.stop_timeout)))
            }
        })
    }

    /// What may be told to the operator now.
    pub const fn promise(&self) -> Promise {
        Promise { boot: self.boot, floor: self.floor, idle: self.program.is_none() }
    }

    /// The token of the program that runs, and the end of its lease.
    pub fn running(&self) -> Option<(i64, Moment)> {
        self.program.as_ref().map(|program| (program.token, program.deadline))
    }

    /// Why the program has to end, if it was told to.
    pub fn ends(&self) -> Option<Why> {
        self.program.as_ref()?.stopping.map(|stopping| stopping.why)
    }

    fn read(&mut self, sent_at: Moment, shown: Option<&Declared>, now: Moment, effects: &mut Vec<Effect>) {
        // The answers may arrive in another order than the reads were sent in. One that was sent before another one
        // says nothing new, and none was sent in the future.
        if self.read_at.is_some_and(|last| sent_at.boottime < last.boottime) || sent_at.is_after(now) {
            return;
        }
        self.read_at = Some(sent_at);
        let Some(declared) = shown else { return self.terminate(Why::Gone, now, effects) };
        let (token, own) = (declared.token, declared.run_of(self.boot));
        self.floor = self.floor.max(token);
        let stops = own.is_some_and(|run| run.stop);
        if stops {
            self.floor = self.floor.max(token.saturating_add(1));
        }
        let extended = own.filter(|run| run.cleared && run.hold.is_none());
        // A new `LeaderGroup` waits for the longest lease, and no longer.
        let lease = own.map_or(Duration::ZERO, |run| run.lease.min(LONGEST_LEASE));
        let extended = extended.map(|_| sent_at.after(lease));
        match &mut self.program {
            Some(program) if token == program.token && own.is_some() => {
                if let Some(deadline) = extended {
                    program.deadline = program.deadline.max(deadline);
                }
                if stops {
                    self.terminate(Why::Planned, now, effects);
                }
            }
            Some(program) if token > program.token => self.terminate(Why::Superseded, now, effects),
            // A smaller token, or another boot: this declaration is not that of the program any more.
            Some(_) => self.terminate(Why::Gone, now, effects),
            None => {
                let lapse_timeout = self.settings.lapse_timeout.min(lease / 4);
                let starts = extended
                    .filter(|deadline| token >= self.floor && !now.is_past(deadline.before(lapse_timeout)));
                if let Some(deadline) = starts {
                    self.program = Some(Program { token, deadline, lapse_timeout, stopping: None });
                    effects.push(Effect::Start(token));
                }
            }
        }
    }

    fn ended(&mut self) {
        if let Some(program) = self.program.take() {
            self.floor = self.floor.max(program.token.saturating_add(1));
        }
    }

    /// Tells the program to end, unless it was told before.
    fn terminate(&mut self, why: Why, now: Moment, effects: &mut Vec<Effect>) {
        let Some(program) = self.program.as_mut().filter(|program| program.stopping.is_none()) else {
            return;
        };
        program.stopping = Some(Stopping { since: now, why, killed: false });
        effects.push(Effect::Terminate(why));
    }

    /// Ends a program whose time is up.
    fn end_in_time(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(program) = &self.program else { return };
        if now.is_past(program.deadline.before(program.lapse_timeout)) {
            self.terminate(Why::Lapsed, now, effects);
        }
        let stop_timeout = self.settings.stop_timeout;
        let Some(program) = &mut self.program else { return };
        let Some(stopping) = program.stopping.as_mut().filter(|stopping| !stopping.killed) else { return };
        if now.is_past(program.deadline) || now.is_past(stopping.since.after(stop_timeout)) {
            stopping.killed = true;
            effects.push(Effect::Kill(stopping.why));
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Superseded => "another term was declared",
            Self::Gone => "the LeaderGroup no longer declares this term",
            Self::Planned => "another pod takes over as planned",
            Self::Lapsed => "the declaration could not be read for almost the whole lease",
        })
    }
}

#[cfg(test)]
mod tests;
