//! The `EndpointSlices` that the operator writes: at most one endpoint each, always a pod that is active under the
//! token of the slice's stamp, or was until a change that may still be under way, and stamps that only grow.

use std::{collections::BTreeMap, time::Duration};

use leadergroup::api::Stamp;

use super::outcome::{Invariant, Violation};
use super::{Change, History, Object, ObjectId, SliceView};
use crate::moment::Moment;

/// For how long a pod that is no longer active may be written to a slice: longer than the operator lets a slice list it
/// while it changes the holder (2 s), and than a write of the former term may be late: a webhook lets it wait for 10 s.
const CHANGE_IS_OVER: Duration = Duration::from_secs(15);

/// Active pods by the group's UID, the token, and the pod's UID, and when they ceased to be active under it.
type Actives = BTreeMap<(String, i64, String), Option<Moment>>;

/// The slices that broke one of the rules.
pub(super) fn violations(history: &History) -> Vec<Violation> {
    let mut active = Actives::new();
    let mut uids: BTreeMap<&ObjectId, &str> = BTreeMap::new();
    let mut slices: BTreeMap<&ObjectId, Stamp> = BTreeMap::new();
    let mut found = Vec::new();
    for change in &history.changes {
        match &change.state {
            Some(Object::Pod(pod)) => {
                uids.insert(&change.id, &pod.uid);
                // Only active pods have a fencing token.
                let term = stamp(pod.stamp.as_deref()).filter(|_| pod.fencing.is_some());
                let term = term.map(|it| (it.group, it.token, pod.uid.clone()));
                end(&mut active, &pod.uid, term.as_ref(), change.seen);
                active.extend(term.map(|term| (term, None)));
            }
            Some(Object::Slice(slice)) if slice.managed => {
                let stamp = stamp(slice.stamp.as_deref());
                let before = stamp.clone().and_then(|stamp| slices.insert(&change.id, stamp));
                let wrong = wrong((change, slice), before.as_ref(), stamp.as_ref(), &active);
                found.extend(wrong.filter(|_| change.revision > history.baseline).map(
                    |(invariant, text)| Violation {
                        invariant,
                        revision: change.revision,
                        object: change.id.to_string(),
                        text,
                    },
                ));
            }
            None => {
                slices.remove(&change.id);
                if let Some(uid) = uids.remove(&change.id) {
                    end(&mut active, uid, None, change.seen);
                }
            }
            Some(_) => {}
        }
    }
    found
}

/// A pod is active under no other term than this one any more.
fn end(active: &mut Actives, uid: &str, term: Option<&(String, i64, String)>, at: Moment) {
    let others = active.iter_mut().filter(|(of, ended)| of.2 == uid && ended.is_none() && Some(*of) != term);
    others.for_each(|(_, ended)| *ended = Some(at));
}

fn stamp(text: Option<&str>) -> Option<Stamp> {
    text?.parse().ok()
}

fn wrong(
    (change, slice): (&Change, &SliceView),
    before: Option<&Stamp>,
    stamp: Option<&Stamp>,
    active: &Actives,
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
    match active.get(&(stamp.group.clone(), stamp.token, pod.clone())) {
        None => {
            let text = format!("lists {pod}, which was not active with the stamp {stamp} before");
            Some((Invariant::GrantedAndDeclared, text))
        }
        // Nothing is sent to an endpoint that neither is ready nor serves.
        Some(Some(ended)) if slice.serving.contains(pod) && change.seen > ended.plus(CHANGE_IS_OVER) => {
            let since = change.seen.since(*ended);
            Some((Invariant::NoLateWrites, format!("lists {pod}, which ceased to be active {since:?} ago")))
        }
        Some(_) => None,
    }
}
