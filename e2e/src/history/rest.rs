//! The state at the end of a history, for scenarios in which nothing is left to do.

use std::collections::BTreeMap;

use leadergroup::api::Stamp;

use super::objects::selects;
use super::outcome::{Invariant, Violation};
use super::{GroupView, History, Object, ObjectId, PodView, SliceView};

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
            let is_holder = group.declaration.holder.as_ref().is_some_and(|holder| holder.uid == pod.uid);
            let mut others = groups().filter(|(other, _)| other.namespace == id.namespace && *other != id);
            !is_holder && others.any(|(_, other)| selects(&other.selector, &pod.labels))
        };
        let slices: Vec<(&ObjectId, &SliceView)> = state
            .iter()
            .filter_map(|(id, object)| match object {
                Object::Slice(slice) => Some((*id, slice)),
                _ => None,
            })
            .filter(|(_, slice)| slice.managed && is_of(slice, group))
            .collect();
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
            let wrong = wrong(group, &pods).into_iter().chain(misrouted(group, &slices));
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

fn is_of(slice: &SliceView, group: &GroupView) -> bool {
    let stamp = slice.stamp.as_deref().and_then(|stamp| stamp.parse::<Stamp>().ok());
    stamp.is_some_and(|stamp| stamp.group == group.uid)
}

/// The slices that the operator writes list no pod but the holder, in every address family.
fn misrouted(group: &GroupView, slices: &[(&ObjectId, &SliceView)]) -> Vec<(Invariant, String)> {
    let holder = group.declaration.holder.as_ref().map(|holder| &holder.uid);
    let mut found = Vec::new();
    for (id, slice) in slices {
        if slice.endpoints.iter().any(|pod| Some(pod) != holder) {
            found.push((Invariant::Liveness, format!("{} lists {:?} at rest", id.name, slice.endpoints)));
        }
    }
    if !slices.is_empty() && slices.iter().all(|(_, slice)| slice.endpoints.is_empty()) {
        found.push((Invariant::Liveness, "no slice lists the holder at rest".to_owned()));
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
