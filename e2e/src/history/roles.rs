//! Changes of role labels, for scenarios in which no role may change.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leadergroup::api::RoutingSpec;
use serde::Serialize;

use super::{History, Kind, Object, ObjectId};
use crate::moment::Moment;

/// The namespace and the name of a pod.
type Name<'a> = (&'a str, &'a str);

fn name(id: &ObjectId) -> Name<'_> {
    (&id.namespace, &id.name)
}

/// A pod's role label changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleChange {
    /// The revision.
    pub revision: i64,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The value before; `None`: no label, or no such pod.
    pub from: Option<String>,
    /// The value after; `None`: no label, or the pod is gone.
    pub to: Option<String>,
    /// The pod is gone.
    pub gone: bool,
}

impl RoleChange {
    fn name(&self) -> Name<'_> {
        (&self.namespace, &self.pod)
    }
}

/// All changes of role labels after a revision, including the first role and the deletion of a pod. Not included is the
/// end of a pod that was being deleted before: only its kubelet decides when that is.
pub fn role_changes(history: &History, routing: &RoutingSpec, after: i64) -> Vec<RoleChange> {
    let mut roles: BTreeMap<(String, String), Option<String>> = BTreeMap::new();
    let mut changes = Vec::new();
    let mut ending = BTreeSet::new();
    for change in &history.changes {
        let to = match &change.state {
            Some(Object::Pod(pod)) => pod.role(routing).map(str::to_owned),
            None if change.id.kind == Kind::Pod => None,
            Some(_) | None => continue,
        };
        let name = (change.id.namespace.clone(), change.id.name.clone());
        if let Some(Object::Pod(pod)) = &change.state
            && pod.deleting
            && change.revision <= after
        {
            ending.insert(name.clone());
        }
        let is_end = change.state.is_none() && ending.contains(&name);
        let from = roles.insert(name, to.clone()).flatten();
        if from != to && change.revision > after && !is_end {
            changes.push(RoleChange {
                revision: change.revision,
                namespace: change.id.namespace.clone(),
                pod: change.id.name.clone(),
                from,
                to,
                gone: change.state.is_none(),
            });
        }
    }
    changes
}

/// Like [`role_changes`], without the end of standbys that Kubernetes replaced because their node was lost. The first
/// role of as many new pods is left out as well. A pod counts if it was a standby at the revision, and its label did
/// not change until its end.
pub fn role_changes_except_of_lost_nodes(
    history: &History,
    routing: &RoutingSpec,
    after: i64,
) -> Vec<RoleChange> {
    let standby = Some(routing.standby_value.as_str());
    let old = roles_at(history, routing, after);
    let mut changes = role_changes(history, routing, after);
    let mut lost = evicted(history, after);
    lost.retain(|name| {
        let is_relabelled = changes.iter().any(|change| !change.gone && change.name() == *name);
        !is_relabelled && old.get(name).copied().flatten() == standby
    });
    let mut new = lost.len();
    changes.retain(|change| {
        let is_end = change.gone && lost.contains(&change.name());
        let is_first = !old.contains_key(&change.name())
            && change.from.is_none()
            && change.to.as_deref() == standby
            && new > 0;
        new -= usize::from(is_first);
        !is_end && !is_first
    });
    changes
}

/// The pods that there were at a revision, and the values of their role labels.
fn roles_at<'a>(
    history: &'a History,
    routing: &RoutingSpec,
    revision: i64,
) -> BTreeMap<Name<'a>, Option<&'a str>> {
    let mut roles = BTreeMap::new();
    for change in history.changes.iter().filter(|change| change.revision <= revision) {
        match &change.state {
            Some(Object::Pod(pod)) => {
                roles.insert(name(&change.id), pod.role(routing));
            }
            None if change.id.kind == Kind::Pod => {
                roles.remove(&name(&change.id));
            }
            Some(_) | None => {}
        }
    }
    roles
}

/// The pods that were deleted after a revision and had been marked for it by Kubernetes, because of a taint of their
/// node. The mark is a revision of its own, immediately before the deletion.
fn evicted(history: &History, after: i64) -> BTreeSet<Name<'_>> {
    let (mut marked, mut evicted) = (BTreeSet::new(), BTreeSet::new());
    for change in history.changes.iter().filter(|change| change.id.kind == Kind::Pod) {
        let name = name(&change.id);
        let was_marked = marked.remove(&name);
        match &change.state {
            // A mark on a pod that is being deleted is not why.
            Some(Object::Pod(pod)) if !pod.deleting => marked.extend(pod.tainted.then_some(name)),
            _ => evicted.extend((was_marked && change.revision > after).then_some(name)),
        }
    }
    evicted
}

/// For how long the API server had said, without a break, that a pod is not ready when it lost a role after a revision.
/// None if it lost none, or was ready then.
pub fn unready_before_change(
    history: &History,
    routing: &RoutingSpec,
    pod: &str,
    after: i64,
) -> Option<Duration> {
    let lost = role_changes(history, routing, after)
        .into_iter()
        .find(|change| change.pod == pod && change.from.is_some())?;
    let mut since: Option<Moment> = None;
    for change in history.changes.iter().filter(|change| change.id.name == pod) {
        if change.revision >= lost.revision {
            return since.map(|since| change.seen.since(since));
        }
        if let Some(Object::Pod(view)) = &change.state {
            since = view.unready.then(|| since.unwrap_or(change.seen));
        }
    }
    None
}
