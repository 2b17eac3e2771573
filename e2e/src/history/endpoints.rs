//! The `EndpointSlices` that the operator writes: at most one endpoint each, always a pod that is active under the
//! token of the slice's stamp, or was until a change that may still be under way, and stamps that only grow.
//!
//! A pod that stays active is stamped again by each change. Its slice gets the stamp of the last one, when that change
//! is complete: it waits for the lease of a former program, and may be one of several that were begun. Until then the
//! conditions of the pod may be written under the former stamp.

use std::{collections::BTreeMap, time::Duration};

use leadergroup::api::{Declaration, Stamp};

use super::outcome::{Invariant, Violation};
use super::{History, Object, ObjectId, SliceView};
use crate::moment::Moment;

/// For how long a pod that is no longer active may be written to a slice: longer than the operator lets a slice list it
/// while it changes the holder (2 s), and than a write of the former term may be late: a webhook lets it wait for 10 s.
/// A write that the test let take effect late is judged by when it was sent.
const CHANGE_IS_OVER: Duration = Duration::from_secs(15);

/// Active pods by the group's UID, the token, and the pod's UID.
type Actives = BTreeMap<(String, i64, String), Active>;

/// For how long a pod was active under a token.
struct Active {
    from: Moment,
    /// When it ceased to be so; `None` if it is.
    until: Option<Moment>,
}

/// The declared terms, by the group's UID.
type Declared<'a> = BTreeMap<&'a str, &'a Declaration>;

/// The slices that broke one of the rules.
pub(super) fn violations(history: &History) -> Vec<Violation> {
    let (mut active, mut declared) = (Actives::new(), Declared::new());
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
                if let Some(term) = term {
                    let present = active.entry(term).or_insert(Active { from: change.seen, until: None });
                    if present.until.is_some() {
                        *present = Active { from: change.seen, until: None };
                    }
                }
            }
            Some(Object::Group(group)) => drop(declared.insert(&group.uid, &group.declaration)),
            Some(Object::Slice(slice)) if slice.managed => {
                let stamp = stamp(slice.stamp.as_deref());
                let before = stamp.clone().and_then(|stamp| slices.insert(&change.id, stamp));
                let written = (slice, history.sent(change));
                let wrong = wrong(written, before.as_ref(), stamp.as_ref(), &active, &declared);
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
    let others = active.iter_mut().filter(|(of, it)| of.2 == uid && it.until.is_none() && Some(*of) != term);
    others.for_each(|(_, it)| it.until = Some(at));
}

/// Whether a pod that was active until then has been active under later tokens ever since, and a change is under way
/// that keeps it active.
fn goes_on((group, pod): (&str, &str), mut until: Moment, active: &Actives, declared: &Declared<'_>) -> bool {
    let terms = active.iter().filter(|((of, _, uid), _)| of == group && uid == pod);
    // In the order of the tokens.
    for ((_, token, _), term) in terms.filter(|(_, term)| term.until.is_none_or(|end| end > term.from)) {
        if term.from != until {
            continue;
        }
        let Some(end) = term.until else {
            return declared.get(group).is_some_and(|declared| {
                declared.token > *token && declared.holder.as_ref().is_some_and(|holder| holder.uid == pod)
            });
        };
        until = end;
    }
    false
}

fn stamp(text: Option<&str>) -> Option<Stamp> {
    text?.parse().ok()
}

fn wrong(
    (slice, sent): (&SliceView, Moment),
    before: Option<&Stamp>,
    stamp: Option<&Stamp>,
    active: &Actives,
    declared: &Declared<'_>,
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
    let until = active.get(&(stamp.group.clone(), stamp.token, pod.clone())).map(|term| term.until);
    match until {
        None => {
            let text = format!("lists {pod}, which was not active with the stamp {stamp} before");
            Some((Invariant::GrantedAndDeclared, text))
        }
        // Nothing is sent to an endpoint that neither is ready nor serves.
        Some(Some(ended))
            if slice.serving.contains(pod)
                && sent > ended.plus(CHANGE_IS_OVER)
                && !goes_on((&stamp.group, pod), ended, active, declared) =>
        {
            let since = sent.since(ended);
            Some((Invariant::NoLateWrites, format!("lists {pod}, which ceased to be active {since:?} ago")))
        }
        Some(_) => None,
    }
}
