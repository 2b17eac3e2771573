//! The machines: each has a runtime of its own, whose clock stands still until it is its turn. So a process can be
//! stopped and killed, and its clock can be fast or slow.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::{advance, sleep},
};

/// A machine with one process.
pub struct Host {
    runtime: Runtime,
    /// By how many millionths its clock is fast; slow if negative.
    rate_ppm: i64,
    /// It is stopped, as by SIGSTOP, and has not run for this time.
    stopped: Option<Duration>,
}

impl Host {
    /// A machine whose clock gains this many microseconds per second.
    pub fn new(rate_ppm: i64) -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        Self { runtime: runtime.expect("a runtime without threads needs nothing"), rate_ppm, stopped: None }
    }

    /// Where its tasks are started.
    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Runs until this much time has passed. Within it, its timers fire in their order.
    pub fn turn(&mut self, time: Duration) {
        if let Some(behind) = &mut self.stopped {
            *behind += time;
            return;
        }
        let time = self.on_its_clock(time);
        self.runtime.block_on(async { sleep(time).await });
    }

    /// Stops it: nothing in it happens, while its clock goes on. Returns whether it ran.
    pub fn stop(&mut self) -> bool {
        let ran = self.stopped.is_none();
        self.stopped.get_or_insert_default();
        ran
    }

    /// Resumes it. All that was due in the meantime is due now.
    pub fn resume(&mut self) {
        if let Some(behind) = self.stopped.take() {
            let time = self.on_its_clock(behind);
            self.runtime.block_on(async { advance(time).await });
        }
    }

    fn on_its_clock(&self, time: Duration) -> Duration {
        let nanos = i128::try_from(time.as_nanos()).expect("no run lasts for ages");
        let shown = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        Duration::from_nanos(u64::try_from(shown).expect("no clock goes back"))
    }
}
