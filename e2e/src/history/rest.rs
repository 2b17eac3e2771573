//! The state at the end of a history, for scenarios in which nothing is left to do.

use std::collections::BTreeMap;

use leadergroup::api::Stamp;

use super::objects::selects;
use super::outcome::{Invariant, Violation};
use super::{GroupView, History, Object, ObjectId, PodView};

/// I6 and I7: what is not as it must be in a group that has pods and nothing left to do.
pub fn not_at_rest(history: &History) -> Vec<Violation> {
    let mut state: BTreeMap<&ObjectId, &Object> = BTreeMap::new();
    for change in &history.changes {
        match &change.state {
            Some(object) => drop(state.insert(&change.id, object)),
            None => drop(state.remove(&change.id)),
        }
    }
    let groups = || {
        state.iter().filter_map(|(id, object)| match object {
            Object::Group(group) => Some((*id, &**group)),
            _ => None,
        })
    };
    let mut found = Vec::new();
    for (id, group) in groups() {
        let contested = |pod: &PodView| {
            let older = |other: &GroupView| (other.created, &other.uid) < (group.created, &group.uid);
            let mut others = groups().filter(|(other, _)| other.namespace == id.namespace);
            others.any(|(_, other)| older(other) && selects(&other.selector, &pod.labels))
        };
        let pods: Vec<(&ObjectId, &PodView)> = state
            .iter()
            .filter_map(|(id, object)| match object {
                Object::Pod(pod) => Some((*id, pod)),
                _ => None,
            })
            .filter(|(of, pod)| of.namespace == id.namespace && selects(&group.selector, &pod.labels))
            .filter(|(_, pod)| !pod.deleting && !pod.ended && !contested(pod))
            .collect();
        if !pods.is_empty() {
            let wrong = wrong(group, &pods).into_iter();
            found.extend(wrong.map(|(invariant, text)| Violation {
                invariant,
                revision: history.complete_to,
                object: id.to_string(),
                text,
            }));
        }
    }
    found
}

fn wrong(group: &GroupView, pods: &[(&ObjectId, &PodView)]) -> Vec<(Invariant, String)> {
    let (routing, declared) = (&group.routing, &group.declaration);
    let holder = declared.holder.as_ref().map(|holder| holder.uid.as_str());
    let mut found = Vec::new();
    if !pods.iter().any(|(_, pod)| Some(pod.uid.as_str()) == holder) {
        found.push((Invariant::Release, format!("the declared holder {holder:?} is none of the pods")));
    }
    for (id, pod) in pods {
        let is_holder = Some(pod.uid.as_str()) == holder;
        let role = if is_holder { &routing.active_value } else { &routing.standby_value };
        if pod.role(routing) != Some(role) {
            let text = format!("{} is labelled {:?} at rest, not {role}", id.name, pod.role(routing));
            found.push((Invariant::Liveness, text));
        }
        let stamp = Stamp { group: group.uid.clone(), token: declared.token }.to_string();
        if pod.stamp.as_ref() != Some(&stamp) {
            let text = format!("{} has the stamp {:?} at rest, not {stamp}", id.name, pod.stamp);
            found.push((Invariant::Liveness, text));
        }
    }
    found
}

/// I8: what was written after a revision that only the operator writes: groups, and the marks of pods. A new pod is
/// none of it.
pub fn operator_writes(history: &History, after: i64) -> Vec<String> {
    let mut pods: BTreeMap<&ObjectId, &PodView> = BTreeMap::new();
    let mut groups: BTreeMap<&ObjectId, &GroupView> = BTreeMap::new();
    let mut found = Vec::new();
    for change in &history.changes {
        let written = match &change.state {
            Some(Object::Pod(pod)) => {
                let marks = |pod: &PodView| {
                    let known = groups.values().map(|group| pod.role(&group.routing).map(str::to_owned));
                    (pod.stamp.clone(), pod.fencing.clone(), known.collect::<Vec<_>>())
                };
                let before = pods.insert(&change.id, pod);
                before.is_some_and(|before| before.uid == pod.uid && marks(before) != marks(pod))
            }
            Some(Object::Group(group)) => groups.insert(&change.id, group).is_some(),
            _ => false,
        };
        if written && change.revision > after {
            found.push(format!("{} at revision {}", change.id, change.revision));
        }
    }
    found
}
