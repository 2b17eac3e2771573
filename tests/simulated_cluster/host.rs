//! The machines: each has a runtime of its own, whose clock stands still until it is its turn. So a process can be
//! stopped, suspended and killed, and its clock can be fast or slow.

use std::time::Duration;

use leadergroup_lock::memory::Suspended;
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
    /// For how much of that it was suspended.
    slept: Duration,
    state: State,
    /// What its clock that runs during suspend has to add to tokio's.
    suspended: &'static Suspended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Stopped,
    /// Since this true time.
    Suspended(Duration),
}

impl Host {
    /// A machine whose clock gains this many microseconds per second.
    pub fn new(rate_ppm: i32) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads needs nothing");
        let start = runtime.block_on(async { Instant::now() });
        let (passed, slept) = (Duration::ZERO, Duration::ZERO);
        // A few bytes for each replica of a run: clocks are copied everywhere.
        let suspended: &'static Suspended = Box::leak(Box::default());
        Self { runtime, rate_ppm, start, passed, slept, state: State::Runs, suspended }
    }

    /// For how long it was suspended, for its clock that runs meanwhile.
    pub fn suspended(&self) -> &'static Suspended {
        self.suspended
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
        if self.state == State::Runs {
            let shows = self.shows();
            self.runtime.block_on(async { sleep_until(shows).await });
        }
    }

    /// Stops it, as by SIGSTOP: nothing in it happens, while its clocks go on. Returns whether it ran.
    pub fn stop(&mut self) -> bool {
        self.leave(State::Stopped)
    }

    /// Suspends the machine: nothing in it happens, and its timers stand still. When it is resumed, only the clock that
    /// runs during suspend has gone on. Returns whether it ran.
    pub fn suspend(&mut self) -> bool {
        self.leave(State::Suspended(self.passed))
    }

    fn leave(&mut self, state: State) -> bool {
        let ran = self.state == State::Runs;
        if ran {
            self.state = state;
        }
        ran
    }

    /// Resumes it. If it was stopped, all that was due in the meantime is due now.
    pub fn resume(&mut self) {
        match std::mem::replace(&mut self.state, State::Runs) {
            State::Runs => {}
            State::Stopped => {
                let shows = self.shows();
                self.runtime
                    .block_on(async { advance(shows.saturating_duration_since(Instant::now())).await });
            }
            State::Suspended(since) => {
                let slept = self.passed.saturating_sub(since);
                self.slept += slept;
                self.suspended.add(self.shown_after(slept));
            }
        }
    }

    /// What tokio's clock should show.
    fn shows(&self) -> Instant {
        self.start + self.shown_after(self.passed.saturating_sub(self.slept))
    }

    /// What its clocks gain in this true time.
    fn shown_after(&self, time: Duration) -> Duration {
        let nanos = i128::try_from(time.as_nanos()).expect("no run lasts for ages");
        let shown = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        Duration::from_nanos(u64::try_from(shown).expect("no clock goes back"))
    }
}

#[cfg(test)]
mod tests {
    use leadergroup_lock::Clock;

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

    #[test]
    fn only_the_clock_that_runs_during_suspend_shows_that_time() {
        for rate in [-10_000, 0, 94_000] {
            let mut host = Host::new(rate);
            let entered = host.handle().clone();
            let _entered = entered.enter();
            let clock = Clock::simulated(0, Duration::ZERO).counting(host.suspended());
            let timers = |host: &Host| host.runtime.block_on(async { host.start.elapsed() });
            for turn in 0..6_000 {
                match turn {
                    1_000 => assert!(host.suspend()),
                    // It is suspended, and stays so.
                    2_000 => assert!(!host.stop()),
                    4_000 => host.resume(),
                    _ => {}
                }
                host.turn(Duration::from_millis(5));
            }
            let of = |seconds: u64| Duration::from_secs(seconds).mul_f64(1.0 + f64::from(rate) / 1e6);
            let off = [timers(&host).abs_diff(of(15)), clock.now().abs_diff(of(30))];
            assert!(off.iter().all(|off| *off <= Duration::from_millis(1)), "{rate}: {off:?}");
        }
    }
}
