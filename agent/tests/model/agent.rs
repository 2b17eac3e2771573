//! A pod with an agent: the product's machine, on a clock of its own.

use std::time::Duration;

use leadergroup_agent::{
    contract::Boot,
    machine::{Effect, Event, Machine, Settings},
    moment::Moment,
};

use crate::random::Random;

/// A clock that differs in rate and offset.
#[derive(Clone, Copy)]
pub struct Clock {
    offset: u64,
    rate_ppm: u64,
}

impl Clock {
    /// Rates differ by at most 1 %.
    pub fn any(random: &mut Random) -> Self {
        Self { offset: random.below(1_000_000_000), rate_ppm: [990_000, 1_010_000][random.index(2)] }
    }

    /// The same for a replica, whose clock the kernel may bend as well.
    pub fn bent(random: &mut Random) -> Self {
        Self {
            offset: random.below(1_000_000_000),
            rate_ppm: [990_000, 1_010_000, 1_094_000][random.index(3)],
        }
    }

    /// What it shows at this true time, in microseconds.
    pub fn shows(&self, time: u64) -> u64 {
        self.offset + time / 1_000_000 * self.rate_ppm + time % 1_000_000 * self.rate_ppm / 1_000_000
    }

    pub fn moment(&self, time: u64) -> Moment {
        let shown = Duration::from_micros(self.shows(time));
        Moment { boottime: shown, raw: shown }
    }

    /// The true time that passes while it shows this much.
    pub fn true_time(&self, shown: Duration) -> u64 {
        u64::try_from(shown.as_micros()).unwrap() * 1_000_000 / self.rate_ppm + 1
    }
}

/// One start of an agent.
pub struct Agent {
    pub boot: Boot,
    pub pod: usize,
    pub clock: Clock,
    pub machine: Machine,
    /// The number of the start whose program runs.
    pub program: Option<u64>,
    /// The process has ended, and with it all that it had started.
    pub ended: bool,
    /// The program ends at SIGTERM after this time, or not at all.
    pub obeys: Option<u64>,
}

impl Agent {
    pub fn new(boot: Boot, pod: usize, random: &mut Random) -> Self {
        let settings =
            Settings { stop_timeout: Duration::from_secs(10), lapse_timeout: Duration::from_millis(500) };
        Self {
            boot,
            pod,
            clock: Clock::any(random),
            machine: Machine::new(boot, settings),
            program: None,
            ended: false,
            obeys: if random.one_in(2) { None } else { Some(random.below(2_000_000)) },
        }
    }

    pub fn step(&mut self, event: &Event, time: u64) -> Vec<Effect> {
        self.machine.step(event, self.clock.moment(time))
    }
}
