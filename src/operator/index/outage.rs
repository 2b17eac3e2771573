//! How long something that all groups need has been unavailable.

use std::time::Duration;

/// An outage is reported, and a deletion stops waiting for the database, after this time.
pub(in crate::operator) const OUTAGE_PATIENCE: Duration = Duration::from_secs(10);
/// The least time between two changes of the text of an outage.
const REWORDING: Duration = Duration::from_mins(1);

/// A dependency of all groups, such as the database or a watch, does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct Outage {
    pub(in crate::operator) since: Duration,
    pub(in crate::operator) problem: String,
    /// When `problem` was last changed. The text may differ between attempts; it is not reported again each time.
    pub(in crate::operator) worded_at: Duration,
}

/// What keeps this replica from working for any group of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) enum Hindrance {
    /// The lock's database cannot be used.
    Lock(String),
    /// The pods cannot be watched.
    Pods(String),
}

impl Outage {
    /// The outage after another failed attempt.
    pub(in crate::operator) fn goes_on(before: Option<Self>, problem: &str, now: Duration) -> Self {
        let new = Self { since: now, problem: problem.to_owned(), worded_at: now };
        match before {
            None => new,
            Some(before) if now.saturating_sub(before.since) < OUTAGE_PATIENCE => {
                Self { since: before.since, ..new }
            }
            Some(before) if now.saturating_sub(before.worded_at) >= REWORDING => {
                Self { since: before.since, ..new }
            }
            Some(before) => before,
        }
    }

    /// Whether it has lasted for longer than [`OUTAGE_PATIENCE`].
    pub(in crate::operator) fn lasts(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= OUTAGE_PATIENCE
    }
}
