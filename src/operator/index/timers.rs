//! When each group has to be looked at again, with at most one entry for each group.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use crate::operator::object::GroupName;

/// Deadlines of groups, in order.
#[derive(Debug, Default)]
pub(in crate::operator) struct Timers {
    queue: BTreeSet<(Duration, GroupName)>,
    deadlines: HashMap<GroupName, Duration>,
}

impl Timers {
    /// Replaces the deadline of a group.
    pub(in crate::operator) fn set(&mut self, name: &GroupName, at: Option<Duration>) {
        let before = match at {
            Some(at) => self.deadlines.insert(name.clone(), at),
            None => self.deadlines.remove(name),
        };
        if before != at {
            if let Some(before) = before {
                self.queue.remove(&(before, name.clone()));
            }
            if let Some(at) = at {
                self.queue.insert((at, name.clone()));
            }
        }
    }

    /// Moves the deadline of a group forward, unless it is this early already. A deadline that has become too early is
    /// left: when it passes, the next one is computed.
    pub(in crate::operator) fn at_latest(&mut self, name: &GroupName, at: Option<Duration>) {
        if let Some(at) = at
            && self.deadlines.get(name).is_none_or(|before| at < *before)
        {
            self.set(name, Some(at));
        }
    }

    /// The earliest deadline.
    pub(in crate::operator) fn first(&self) -> Option<Duration> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Removes and returns a group whose deadline has passed.
    pub(in crate::operator) fn pop(&mut self, now: Duration) -> Option<GroupName> {
        let (_, name) = self.queue.first().filter(|(at, _)| *at <= now).cloned()?;
        self.set(&name, None);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_deadline_which_only_set_makes_later() {
        let s = Duration::from_secs;
        let name = |name: &str| GroupName { namespace: "shop".into(), name: name.into() };
        let mut timers = Timers::default();
        timers.at_latest(&name("a"), Some(s(5)));
        timers.at_latest(&name("a"), Some(s(7)));
        timers.at_latest(&name("a"), None);
        timers.at_latest(&name("b"), Some(s(6)));
        assert_eq!(timers.first(), Some(s(5)));
        timers.at_latest(&name("a"), Some(s(3)));
        timers.set(&name("b"), Some(s(8)));
        assert_eq!((timers.pop(s(2)), timers.pop(s(7))), (None, Some(name("a"))));
        assert_eq!((timers.pop(s(7)), timers.first()), (None, Some(s(8))));
        timers.set(&name("b"), None);
        assert_eq!(timers.first(), None);
    }
}
