//! The state at the end of a history, for scenarios in which nothing is left to do.

use std::collections::BTreeMap;

use leadergroup::api::{Endpoints, Stamp};

use super::objects::selects;
use super::outcome::{Invariant, Violation};
use super::{Change, GroupView, History, Object, ObjectId, PodView, ServiceView, SliceView};

/// I6 and I7: what is not as it must be when nothing is left to do. Every group must be Ready, except those of
/// `not_ready`, which have the reason that is named beside them. There must be a group at all.
pub fn not_at_rest(history: &History, not_ready: &[(&str, &str)]) -> Vec<Violation> {
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
    let violation = |invariant, object: String, text| Violation {
        invariant,
        revision: history.complete_to,
        object,
        text,
    };
    let mut found: Vec<Violation> = unexpected(&groups().collect::<Vec<_>>(), not_ready)
        .into_iter()
        .map(|(object, text)| violation(Invariant::Liveness, object, text))
        .collect();
    for (id, group) in groups().filter(|(id, _)| !not_ready.iter().any(|(name, _)| id.name == *name)) {
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
            let services = state.iter().filter_map(|(service, object)| match object {
                Object::Service(view) if service.namespace == id.namespace => Some((*service, view)),
                _ => None,
            });
            let wrong = wrong.chain(unrouted((id, group), services, &slices));
            found.extend(wrong.map(|(invariant, text)| violation(invariant, id.to_string(), text)));
        }
    }
    found
}

/// The groups that are not as the scenario expects them at its end, each with what is wrong.
fn unexpected(groups: &[(&ObjectId, &GroupView)], not_ready: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if groups.is_empty() {
        found.push(("LeaderGroup".to_owned(), "there is no group".to_owned()));
    }
    for (name, _) in not_ready.iter().filter(|(name, _)| !groups.iter().any(|(id, _)| id.name == *name)) {
        found.push((format!("LeaderGroup {name}"), "it is not there".to_owned()));
    }
    for (id, group) in groups {
        let reason = not_ready.iter().find(|(name, _)| id.name == *name).map(|(_, reason)| *reason);
        let is = group.ready.as_ref().map(|(status, reason)| (status.as_str(), reason.as_str()));
        let as_expected =
            reason.map_or(is.is_some_and(|is| is.0 == "True"), |reason| is == Some(("False", reason)));
        if !as_expected {
            let expected = reason.map_or("True".to_owned(), |reason| format!("False, {reason}"));
            found.push((id.to_string(), format!("its condition Ready is {is:?}, not {expected}")));
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

/// Each Service that leaves its endpoints to the operator has a slice.
fn unrouted<'a>(
    (id, group): (&ObjectId, &GroupView),
    services: impl Iterator<Item = (&'a ObjectId, &'a ServiceView)>,
    slices: &[(&ObjectId, &SliceView)],
) -> Vec<(Invariant, String)> {
    let is_left = |service: &ServiceView| {
        service.group.as_ref() == Some(&id.name) && service.selects_nothing(&group.routing.role_label)
    };
    let has_slice =
        |service: &ObjectId| slices.iter().any(|(_, slice)| slice.service.as_ref() == Some(&service.name));
    let managed = group.routing.endpoints == Endpoints::Managed;
    let without = services.filter(|(service, view)| managed && is_left(view) && !has_slice(service));
    without
        .map(|(service, _)| (Invariant::Liveness, format!("Service {} has no slice at rest", service.name)))
        .collect()
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

/// I8: what the operator wrote after a revision: pods, groups, EndpointSlices and Events, by their managed fields. It
/// does not matter what was written, nor whether the group is Ready. A slice of the operator that is gone counts, too.
pub fn operator_writes(history: &History, after: i64) -> Vec<String> {
    let mut last: BTreeMap<&ObjectId, &Change> = BTreeMap::new();
    let mut found = Vec::new();
    for change in &history.changes {
        let before = last.insert(&change.id, change);
        let written = match &change.state {
            Some(_) => {
                change.operator.is_some()
                    && before.and_then(|it| it.operator.as_ref()) != change.operator.as_ref()
            }
            None => matches!(before.map(|it| &it.state), Some(Some(Object::Slice(slice))) if slice.managed),
        };
        if written && change.revision > after {
            found.push(format!("{} at revision {}", change.id, change.revision));
        }
    }
    found
}
