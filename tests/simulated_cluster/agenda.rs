//! What is to happen later, in the order of its time; at the same time, in the order in which it was planned.

use std::{collections::BTreeMap, time::Duration};

/// The plan.
pub struct Agenda<T> {
    planned: BTreeMap<(Duration, u64), T>,
    count: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { planned: BTreeMap::new(), count: 0 }
    }
}

impl<T> Agenda<T> {
    pub fn plan(&mut self, at: Duration, what: T) {
        self.count += 1;
        self.planned.insert((at, self.count), what);
    }

    /// The next thing whose time has come.
    pub fn due(&mut self, now: Duration) -> Option<T> {
        let first = self.planned.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}
