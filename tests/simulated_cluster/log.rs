//! The log of a run: with the time of the run, and who wrote each line.

use std::{
    cell::{Cell, RefCell},
    fmt,
    time::Duration,
};

use tracing_subscriber::fmt::{format::Writer, time::FormatTime};

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static WHO: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on this is the time, and who runs.
pub fn set(now: Duration, who: &str) {
    NOW.set(now);
    WHO.with_borrow_mut(|it| who.clone_into(it));
}

struct Simulated;

impl FormatTime for Simulated {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        write!(line, "{:9.3} {:10}", NOW.get().as_secs_f64(), WHO.with_borrow(Clone::clone))
    }
}

/// Shows the log of the tests with, for instance, `LEADERGROUP_CLUSTER_LOG=info`.
pub fn show() {
    let filter = std::env::var("LEADERGROUP_CLUSTER_LOG").unwrap_or_else(|_| "off".to_owned());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_timer(Simulated);
    // Another test may have done it.
    let _ = log.with_ansi(false).with_test_writer().try_init();
}
