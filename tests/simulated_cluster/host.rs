//! The machines: each has a runtime of its own, whose clock stands still until it is its turn. So a process can be
//! stopped and killed, and its clock can be fast or slow.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::{Instant, advance, sleep_until},
};

/// A machine with one process.
pub struct Host {
    runtime: Runtime,
    /// By how many millionths its clock is fast; slow if negative.
    rate_ppm: i32,
    /// When it was started, on its clock.
    start: Instant,
    /// The true time since then.
    passed: Duration,
    is_stopped: bool,
}

impl Host {
    /// A machine whose clock gains this many microseconds per second.
    pub fn new(rate_ppm: i32) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads needs nothing");
        let start = runtime.block_on(async { Instant::now() });
        Self { runtime, rate_ppm, start, passed: Duration::ZERO, is_stopped: false }
    }

    /// Where its tasks are started.
    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Runs until this much time has passed. Within it, its timers fire in their order.
    ///
    /// Timers fire at whole milliseconds, so the clock may show up to one more than it should. That does not add up.
    pub fn turn(&mut self, time: Duration) {
        self.passed += time;
        if !self.is_stopped {
            let shows = self.shows();
            self.runtime.block_on(async { sleep_until(shows).await });
        }
    }

    /// Stops it, as by SIGSTOP: nothing in it happens, while its clock goes on. Returns whether it ran.
    pub fn stop(&mut self) -> bool {
        !std::mem::replace(&mut self.is_stopped, true)
    }

    /// Resumes it. All that was due in the meantime is due now.
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.is_stopped) {
            let shows = self.shows();
            self.runtime.block_on(async { advance(shows.saturating_duration_since(Instant::now())).await });
        }
    }

    /// What its clock should show.
    fn shows(&self) -> Instant {
        let nanos = i128::try_from(self.passed.as_nanos()).expect("no run lasts for ages");
        let shown = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        self.start + Duration::from_nanos(u64::try_from(shown).expect("no clock goes back"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_gains_and_loses_what_it_should_whether_its_machine_runs_or_is_stopped() {
        for rate in [-10_000, -200, 0, 200, 10_000] {
            let mut host = Host::new(rate);
            let shown = |host: &Host| host.runtime.block_on(async { host.start.elapsed() });
            for turn in 0..6_000 {
                if turn == 2_000 {
                    host.stop();
                } else if turn == 4_000 {
                    host.resume();
                }
                host.turn(Duration::from_millis(5));
            }
            let should = Duration::from_secs(30).mul_f64(1.0 + f64::from(rate) / 1e6);
            let off = shown(&host).abs_diff(should);
            assert!(off <= Duration::from_millis(1), "{rate}: {off:?}");
        }
    }
}
