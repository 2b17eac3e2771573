//! Changes of role labels, for scenarios in which no role may change.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leadergroup::api::RoutingSpec;
use serde::Serialize;

use super::{History, Object};
use crate::moment::Moment;

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
            None if change.id.kind == super::Kind::Pod => None,
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
            });
        }
    }
    changes
}

/// Like [`role_changes`], without those of standbys that Kubernetes replaced with a lost node: it reported the pod as
/// not ready, and deleted it afterwards. The first role of as many new pods is left out as well.
pub fn role_changes_but_of_lost_nodes(
    history: &History,
    routing: &RoutingSpec,
    after: i64,
) -> Vec<RoleChange> {
    let (mut unready, mut lost) = (BTreeSet::new(), BTreeSet::new());
    let (mut old, mut standbys) = (BTreeSet::new(), BTreeSet::new());
    for change in &history.changes {
        let Some(Object::Pod(pod)) = &change.state else { continue };
        let name = (change.id.namespace.clone(), change.id.name.clone());
        if change.revision <= after {
            old.insert(name.clone());
            if pod.role(routing) == Some("standby") {
                standbys.insert(name);
            } else {
                standbys.remove(&name);
            }
        } else if !pod.deleting && pod.unready {
            unready.insert(name);
        } else if pod.deleting && unready.contains(&name) && standbys.contains(&name) {
            lost.insert(name);
        }
    }
    let mut new = lost.len();
    let mut changes = role_changes(history, routing, after);
    changes.retain(|change| {
        let name = (change.namespace.clone(), change.pod.clone());
        let is_end = lost.contains(&name) && change.from.as_deref() == Some("standby") && change.to.is_none();
        let is_first = !old.contains(&name)
            && change.from.is_none()
            && change.to.as_deref() == Some("standby")
            && new > 0;
        new -= usize::from(is_first);
        !is_end && !is_first
    });
    changes
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
