//! What the API server's watches have shown, so that a replica can list from a cache that is behind.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    rc::Rc,
};

use crate::{
    replica::Seen,
    server::{GroupObject, Pod},
};

/// How many states are kept.
const KEPT: usize = 12;

/// All objects at one revision.
#[derive(Default)]
struct State {
    pods: BTreeMap<String, Pod>,
    group: Option<GroupObject>,
    digest: u64,
}

/// The latest states, the current one last. The first one, in which there is nothing, is always kept.
#[derive(Clone)]
pub struct Published(VecDeque<Rc<State>>);

impl Default for Published {
    fn default() -> Self {
        Self([Rc::default()].into())
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|state| state.digest)).finish()
    }
}

impl Published {
    /// How many states ago there was nothing.
    pub fn beginning(&self) -> usize {
        self.0.len() - 1
    }

    /// Adds the current state. Returns what the watches of the pods and of the group show; none if nothing changed.
    pub fn add(
        &mut self,
        pods: &BTreeMap<String, Pod>,
        group: Option<&GroupObject>,
    ) -> Option<(Vec<Seen>, Vec<Option<GroupObject>>)> {
        let last = self.0.back()?.clone();
        if last.pods == *pods && last.group.as_ref() == group {
            return None;
        }
        let mut digest = DefaultHasher::new();
        format!("{pods:?}{group:?}").hash(&mut digest);
        let state = State { pods: pods.clone(), group: group.cloned(), digest: digest.finish() };
        let shown = (between(&last, &state), regrouped(&last, &state));
        self.0.push_back(Rc::new(state));
        if self.0.len() > KEPT {
            self.0.remove(1);
        }
        Some(shown)
    }

    fn since(&self, back: usize) -> impl Iterator<Item = (&State, &State)> {
        let from = self.0.len().saturating_sub(back + 1);
        let states = self.0.iter().skip(from);
        states.clone().zip(states.skip(1)).map(|(one, next)| (&**one, &**next))
    }

    fn state(&self, back: usize) -> Option<&State> {
        self.0.iter().rev().nth(back).map(|state| &**state)
    }

    /// What a watch of the pods shows that begins with a list of `back` states ago.
    pub fn pods_since(&self, back: usize) -> VecDeque<Seen> {
        let listed = self.state(back).map(|state| state.pods.values().cloned().collect()).unwrap_or_default();
        let later = self.since(back).flat_map(|(one, next)| between(one, next));
        [Seen::Listed(listed)].into_iter().chain(later).chain([Seen::Current]).collect()
    }

    /// The same for the group.
    pub fn groups_since(&self, back: usize) -> VecDeque<Option<GroupObject>> {
        let listed = self.state(back).map(|state| state.group.clone());
        let later = self.since(back).flat_map(|(one, next)| regrouped(one, next));
        listed.into_iter().chain(later).collect()
    }
}

fn between(one: &State, next: &State) -> Vec<Seen> {
    let mut events = Vec::new();
    for (name, before) in &one.pods {
        if next.pods.get(name).is_none_or(|now| now.pod.uid != before.pod.uid) {
            events.push(Seen::PodGone(before.pod.uid.clone()));
        }
    }
    let changed = next.pods.iter().filter(|(name, now)| one.pods.get(*name) != Some(now));
    events.extend(changed.map(|(_, now)| Seen::Pod(now.clone())));
    events
}

fn regrouped(one: &State, next: &State) -> Vec<Option<GroupObject>> {
    if one.group == next.group { Vec::new() } else { vec![next.group.clone()] }
}
