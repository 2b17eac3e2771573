//! I9: which programs run when, in true time. Two of one group never run at the same moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A program that runs.
#[derive(Clone, Debug)]
struct Running {
    group: String,
    pod: String,
    token: i64,
    since: Duration,
    /// It does nothing.
    stands_still: bool,
}

/// All programs of a run.
#[derive(Default)]
pub struct Ledger {
    started: usize,
    running: BTreeMap<usize, Running>,
    /// The terms in which programs of each group have run.
    terms: BTreeMap<String, BTreeSet<(i64, String)>>,
    violations: Vec<String>,
}

impl Ledger {
    /// A program starts. Returns its number.
    pub fn started(&mut self, group: &str, pod: &str, token: i64, now: Duration) -> usize {
        self.started += 1;
        self.terms.entry(group.to_owned()).or_default().insert((token, pod.to_owned()));
        let (group, pod) = (group.to_owned(), pod.to_owned());
        self.running.insert(self.started, Running { group, pod, token, since: now, stands_still: false });
        self.look_for_others(self.started, now);
        self.started
    }

    /// A program and all that it had started have ended.
    pub fn ended(&mut self, id: usize) {
        self.running.remove(&id);
    }

    /// All processes of a program stand still.
    pub fn stands_still(&mut self, id: usize) {
        if let Some(running) = self.running.get_mut(&id) {
            running.stands_still = true;
        }
    }

    /// They go on.
    pub fn goes_on(&mut self, id: usize, now: Duration) {
        if let Some(running) = self.running.get_mut(&id) {
            running.stands_still = false;
            self.look_for_others(id, now);
        }
    }

    fn look_for_others(&mut self, id: usize, now: Duration) {
        let Some(own) = self.running.get(&id) else { return };
        let beside =
            |(other, it): &(&usize, &Running)| **other != id && it.group == own.group && !it.stands_still;
        for (_, other) in self.running.iter().filter(beside) {
            self.violations.push(format!(
                "{now:?}: {} runs the program of {} with token {}, while {} runs one with token {} since {:?}",
                own.pod, own.group, own.token, other.pod, other.token, other.since
            ));
        }
    }

    /// Where two programs of a group ran at the same moment.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// In how many terms programs of a group have run.
    pub fn terms(&self, group: &str) -> usize {
        self.terms.get(group).map_or(0, BTreeSet::len)
    }

    /// The pods in which programs of a group run.
    pub fn running(&self, group: &str) -> Vec<&str> {
        let of_group = self.running.values().filter(|running| running.group == group);
        of_group.map(|running| running.pod.as_str()).collect()
    }
}
