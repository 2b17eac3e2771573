//! The time of day on the machines of the replicas. Users read it, and nothing may be decided by it.

use std::{cell::Cell, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// When a run begins.
pub const BEGINNING: Timestamp = Timestamp::constant(1_800_000_000, 0);

thread_local! {
    static SHOWS: Cell<Timestamp> = const { Cell::new(BEGINNING) };
}

/// From now on the machine whose turn it is shows this time of the run, and by how much its clock was set.
pub fn set(now: Duration, off: SignedDuration) {
    let now = SignedDuration::try_from(now).expect("no run lasts for ages");
    SHOWS.set(BEGINNING + now + off);
}

/// What that machine shows.
pub fn shows() -> Timestamp {
    SHOWS.get()
}
