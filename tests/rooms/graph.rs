//! Circles in a graph of files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Which files each file uses.
pub type Edges = BTreeMap<String, BTreeSet<String>>;

/// Files that use each other, in order; the last uses the first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Circle(Vec<String>);

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.0.join(" -> "), self.0[0])
    }
}

/// The shortest circle through each file that is part of one, each circle once.
pub fn circles(edges: &Edges) -> Vec<Circle> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for start in edges.keys() {
        if let Some(circle) = shortest(edges, start)
            && seen.insert(circle.iter().cloned().collect::<BTreeSet<_>>())
        {
            found.push(Circle(circle));
        }
    }
    found.sort();
    found
}

fn shortest(edges: &Edges, start: &str) -> Option<Vec<String>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for next in edges.get(at).into_iter().flatten() {
            if next == start {
                let mut circle = vec![at];
                while let Some(before) = circle.last().and_then(|last| came_from.get(last)) {
                    circle.push(before);
                }
                circle.reverse();
                return Some(circle.into_iter().map(str::to_owned).collect());
            }
            if !came_from.contains_key(next.as_str()) {
                came_from.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}
