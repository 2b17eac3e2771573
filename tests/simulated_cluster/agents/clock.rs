//! The clocks of a node.

use std::time::Duration;

use leadergroup_agent::moment::Moment;
use leadergroup_e2e::random::Random;

/// The clocks of a node: neither shows the true time, and the kernel bends one of them.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: Duration,
    raw_ppm: u64,
    bent_ppm: u64,
}

const MILLION: u64 = 1_000_000;
/// By how much the rate of a clock may differ from true time, and by how much the kernel bends one.
const OFF: u64 = 10_000;
const BENDS: u64 = 83_300;

impl Clock {
    /// Many are off by as much as they may be.
    pub fn any(random: &mut Random) -> Self {
        let raw_ppm = match random.below(3) {
            0 => MILLION - OFF,
            1 => MILLION + OFF,
            _ => MILLION,
        };
        let bent_ppm = match random.below(4) {
            0 => raw_ppm - raw_ppm * BENDS / MILLION,
            1 => raw_ppm + raw_ppm * BENDS / MILLION,
            _ => raw_ppm,
        };
        Self { offset: Duration::from_secs(1 + random.below(1_000_000) as u64), raw_ppm, bent_ppm }
    }

    /// What they show at this true time.
    pub fn moment(&self, now: Duration) -> Moment {
        let now = u64::try_from(now.as_micros()).expect("no run lasts for ages");
        let shown = |ppm: u64| self.offset + Duration::from_micros(now * ppm / MILLION);
        Moment { boottime: shown(self.bent_ppm), raw: shown(self.raw_ppm) }
    }
}
