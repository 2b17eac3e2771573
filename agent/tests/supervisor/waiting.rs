//! Waiting for what other processes do.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until it is true.
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < DEADLINE, "{what} did not come within {DEADLINE:?}");
        sleep(Duration::from_millis(20));
    }
}
