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
