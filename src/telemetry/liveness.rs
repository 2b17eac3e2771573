//! Whether the process is live (its event loop runs) and ready (everything it needs is available).

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Detects a stuck event loop: the loop touches this value in each iteration, and must not stop doing so for too
/// long.
///
/// It is for a loop that can get stuck only because of a bug, so that a restart helps. It does not depend on the
/// database or the API server.
#[derive(Clone, Debug)]
pub struct Liveness {
    bound: Duration,
    touched: Arc<Mutex<Instant>>,
}

impl Liveness {
    /// Live as long as it is touched at least once per `bound`. It counts as touched now.
    pub fn new(bound: Duration) -> Self {
        Self { bound, touched: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Records an iteration of the loop.
    pub fn touch(&self) {
        *self.touched.lock() = Instant::now();
    }

    /// An error if the last iteration of the loop is too long ago.
    pub fn check(&self) -> Result<(), String> {
        let idle = self.touched.lock().elapsed();
        if idle <= self.bound {
            return Ok(());
        }
        Err(format!(
            "event loop: has not turned for {} ms, at most {} ms",
            idle.as_millis(),
            self.bound.as_millis()
        ))
    }
}

/// Whether the process can do its work: all named checks must pass.
#[derive(Clone, Debug, Default)]
pub struct ReadyChecks(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

/// One named check.
#[derive(Clone, Debug)]
pub struct Check {
    name: &'static str,
    all: ReadyChecks,
}

impl ReadyChecks {
    /// Adds a check that has not passed yet, because of `reason`.
    pub fn check(&self, name: &'static str, reason: &str) -> Check {
        let check = Check { name, all: self.clone() };
        check.fail(reason);
        check
    }

    /// An error with one line per failing check, with its reason.
    pub(crate) fn check_all(&self) -> Result<(), String> {
        let mut wrong = String::new();
        for (name, reason) in self.0.lock().iter() {
            if let Some(reason) = reason {
                // Writing to a string cannot fail.
                let _ = writeln!(wrong, "{name}: {reason}");
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

impl Check {
    /// Marks the check as passing.
    pub fn pass(&self) {
        self.all.0.lock().insert(self.name, None);
    }

    /// Marks the check as failing, with a human-readable reason.
    pub fn fail(&self, reason: &str) {
        self.all.0.lock().insert(self.name, Some(reason.to_owned()));
    }
}
