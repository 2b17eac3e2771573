//! The `EndpointSlices` that the operator writes: at most one endpoint each, always a pod that was active under the
//! token of the slice's stamp, and stamps that only grow.

use std::collections::{BTreeMap, BTreeSet};

use leadergroup::api::Stamp;

use super::outcome::{Invariant, Violation};
use super::{History, Object, ObjectId, SliceView};

/// The slices that broke one of the rules.
pub(super) fn violations(history: &History) -> Vec<Violation> {
    // The group's UID, the token, and the pod's UID.
    let mut active: BTreeSet<(String, i64, String)> = BTreeSet::new();
    let mut slices: BTreeMap<&ObjectId, Stamp> = BTreeMap::new();
    let mut found = Vec::new();
    for change in &history.changes {
        match &change.state {
            // Only active pods have a fencing token.
            Some(Object::Pod(pod)) if pod.fencing.is_some() => {
                active.extend(stamp(pod.stamp.as_deref()).map(|it| (it.group, it.token, pod.uid.clone())));
            }
            Some(Object::Slice(slice)) if slice.managed => {
                let stamp = stamp(slice.stamp.as_deref());
                let before = stamp.clone().and_then(|stamp| slices.insert(&change.id, stamp));
                let wrong = wrong(slice, before.as_ref(), stamp.as_ref(), &active);
                found.extend(wrong.filter(|_| change.revision > history.baseline).map(
                    |(invariant, text)| Violation {
                        invariant,
                        revision: change.revision,
                        object: change.id.to_string(),
                        text,
                    },
                ));
            }
            None => drop(slices.remove(&change.id)),
            Some(_) => {}
        }
    }
    found
}

fn stamp(text: Option<&str>) -> Option<Stamp> {
    text?.parse().ok()
}

fn wrong(
    slice: &SliceView,
    before: Option<&Stamp>,
    stamp: Option<&Stamp>,
    active: &BTreeSet<(String, i64, String)>,
) -> Option<(Invariant, String)> {
    let Some(stamp) = stamp else {
        return Some((Invariant::GrantedAndDeclared, format!("has the stamp {:?}", slice.stamp)));
    };
    if slice.endpoints.len() > 1 {
        return Some((Invariant::OneActive, format!("lists the endpoints {:?}", slice.endpoints)));
    }
    if let Some(before) = before.filter(|before| before.group == stamp.group && before.token > stamp.token) {
        return Some((Invariant::NoLateWrites, format!("has the stamp {stamp} after {before}")));
    }
    let pod = slice.endpoints.first()?;
    let known = active.contains(&(stamp.group.clone(), stamp.token, pod.clone()));
    (!known).then(|| {
        (
            Invariant::GrantedAndDeclared,
            format!("lists {pod}, which was not active with the stamp {stamp} before"),
        )
    })
}
