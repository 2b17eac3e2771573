//! Whether the process lives (its event loop turns) and is ready (what it needs is there).

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Tells that the event loop turns: the loop touches it each time round, and it must not stay untouched for too long.
///
/// Held by a loop that can be stuck for good only if it is broken, so that a restart helps. It says nothing about databases
/// or API servers that are away.
#[derive(Clone, Debug)]
pub struct Liveness {
    bound: Duration,
    touched: Arc<Mutex<Instant>>,
}

impl Liveness {
    /// Alive for as long as it is touched at least once in `bound`; it counts as touched now.
    pub fn new(bound: Duration) -> Self {
        Self { bound, touched: Arc::new(Mutex::new(Instant::now())) }
    }

    /// The loop has turned.
    pub fn touch(&self) {
        *self.touched.lock() = Instant::now();
    }

    /// Says what is wrong, if the loop has not turned for too long.
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

/// Tells whether the process can do its work: all of the named checks must pass.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

/// One named check.
#[derive(Clone, Debug)]
pub struct Check {
    name: &'static str,
    all: Readiness,
}

impl Readiness {
    /// Adds a check that has not passed yet, because of `reason`.
    pub fn check(&self, name: &'static str, reason: &str) -> Check {
        let check = Check { name, all: self.clone() };
        check.fail(reason);
        check
    }

    /// Says of each check that does not pass, a line each, why.
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
    /// It passes from now on.
    pub fn pass(&self) {
        self.all.0.lock().insert(self.name, None);
    }

    /// It does not pass from now on; `reason` is for people.
    pub fn fail(&self, reason: &str) {
        self.all.0.lock().insert(self.name, Some(reason.to_owned()));
    }
}
