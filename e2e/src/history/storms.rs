//! I8 while there are faults: nobody writes in a loop.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::outcome::{Invariant, Violation};
use super::{History, Kind, ObjectId};
use crate::moment::Moment;

/// So often a group may be written within this time. A few changes of holder, each with a declaration and a report, are
/// ten writes. The busiest groups of the simulated cluster have two owners, because two databases act as primary, and
/// agents: 41 writes. A loop writes every few milliseconds.
const MOST: usize = 80;
const WITHIN: Duration = Duration::from_secs(10);

/// The groups that were written again and again. Each is told once.
pub(super) fn violations(history: &History) -> Vec<Violation> {
    let mut written: BTreeMap<&ObjectId, VecDeque<Moment>> = BTreeMap::new();
    let (mut told, mut found) = (BTreeSet::new(), Vec::new());
    let groups = history.changes.iter().filter(|it| it.id.kind == Kind::LeaderGroup);
    for change in groups.filter(|it| it.revision > history.baseline) {
        let times = written.entry(&change.id).or_default();
        times.push_back(change.seen);
        while times.front().is_some_and(|first| first.plus(WITHIN) < change.seen) {
            times.pop_front();
        }
        if times.len() > MOST && told.insert(&change.id) {
            found.push(Violation {
                invariant: Invariant::Quiet,
                revision: change.revision,
                object: change.id.to_string(),
                text: format!("written {} times within {} s", times.len(), WITHIN.as_secs()),
            });
        }
    }
    found
}
