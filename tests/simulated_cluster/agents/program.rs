//! A program under an agent: how long it takes to start and to end, and what it leaves behind.

use std::time::Duration;

use leadergroup_e2e::random::Random;

pub use crate::simulation::millis;

/// How long killed processes may take to end: a little less than the margin that the contract has for it.
const LONGEST_KILL: usize = 450;
/// How long they usually take.
const KILL: usize = 20;

/// How the programs of a pod behave.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// How long after SIGTERM the agent kills them.
    pub stop_timeout: Duration,
    /// How long one may take until it is ready.
    starts: usize,
    /// How long one may take to end after SIGTERM; `None`: it ignores it.
    ends: Option<usize>,
}

impl Habits {
    pub fn any(random: &mut Random) -> Self {
        Self {
            stop_timeout: Duration::from_secs([2, 3, 8][random.below(3)]),
            starts: [100, 2_500][random.below(2)],
            ends: [Some(50), Some(1_500), None][random.below(3)],
        }
    }

    pub fn ignore_sigterm(&mut self) {
        self.ends = None;
    }
}

/// A program that was started. It runs until all of its processes are gone.
pub struct Program {
    /// Its number in the ledger.
    pub id: usize,
    ready_at: Duration,
    /// When its first process ends. The agent kills what is left then.
    exits_at: Option<Duration>,
    /// When all of its processes are gone.
    gone_at: Option<Duration>,
}

impl Program {
    pub fn new(id: usize, habits: &Habits, now: Duration, random: &mut Random) -> Self {
        Self { id, ready_at: now + millis(random, habits.starts), exits_at: None, gone_at: None }
    }

    pub fn is_ready(&self, now: Duration) -> bool {
        now >= self.ready_at
    }

    /// Whether it ends because it was killed, or because its first process has ended.
    pub fn is_killed(&self) -> bool {
        self.gone_at.is_some()
    }

    /// It gets SIGTERM.
    pub fn terminate(&mut self, habits: &Habits, now: Duration, random: &mut Random) {
        let Some(ends) = habits.ends else { return };
        self.exits_at.get_or_insert(now + millis(random, ends));
    }

    /// It ends by itself. Returns whether it was not about to end.
    pub fn exit(&mut self, now: Duration) -> bool {
        let was_to_stay = self.exits_at.is_none() && self.gone_at.is_none();
        self.exits_at.get_or_insert(now);
        was_to_stay
    }

    /// All of its processes are killed. They end as soon as they get the CPU.
    pub fn kill(&mut self, now: Duration, random: &mut Random) {
        let within = if random.below(4) == 0 { LONGEST_KILL } else { KILL };
        self.gone_at.get_or_insert(now + millis(random, within));
    }

    /// Whether nothing of it is left. What its first process has left behind is killed when that has ended.
    pub fn is_gone(&mut self, now: Duration, random: &mut Random) -> bool {
        if self.exits_at.is_some_and(|at| now >= at) {
            self.kill(now, random);
        }
        self.gone_at.is_some_and(|at| now >= at)
    }
}
