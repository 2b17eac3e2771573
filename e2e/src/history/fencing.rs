//! Fencing tokens on pods: at every revision only an active pod has one, and it is that of its term.

use std::collections::BTreeMap;

use leadergroup::api::{FencingToken, RoutingSpec, Stamp};

use super::outcome::{Invariant, Violation};
use super::{Change, History, Object, ObjectId, PodView};

/// A group as far as its pods' marks tell of it. A group that is gone may leave its marks behind.
struct Known {
    namespace: String,
    routing: RoutingSpec,
    key: String,
}

/// The pods whose fencing token did not fit their role.
pub(super) fn violations(history: &History) -> Vec<Violation> {
    let mut groups: BTreeMap<String, Known> = BTreeMap::new();
    let mut pods: BTreeMap<&ObjectId, &PodView> = BTreeMap::new();
    let mut found = Vec::new();
    for change in &history.changes {
        match &change.state {
            Some(Object::Group(group)) => {
                let id = &change.id;
                let cluster = history.cluster.as_deref().unwrap_or("?");
                let key = group.key.clone();
                let key = key.unwrap_or_else(|| format!("{cluster}/{}/{}", id.namespace, id.name));
                let (namespace, routing) = (id.namespace.clone(), group.routing.clone());
                groups.insert(group.uid.clone(), Known { namespace, routing, key });
            }
            Some(Object::Pod(pod)) => {
                let before = pods.insert(&change.id, pod);
                let wrong =
                    wrong(change, before, pod, &groups).filter(|_| change.revision > history.baseline);
                found.extend(wrong.map(|(invariant, text)| Violation {
                    invariant,
                    revision: change.revision,
                    object: change.id.to_string(),
                    text,
                }));
            }
            _ => {}
        }
    }
    found
}

fn wrong(
    change: &Change,
    before: Option<&PodView>,
    pod: &PodView,
    groups: &BTreeMap<String, Known>,
) -> Option<(Invariant, String)> {
    let stamp = pod.stamp.as_deref().and_then(|stamp| stamp.parse::<Stamp>().ok());
    let stamped_by = stamp.as_ref().and_then(|stamp| groups.get(&stamp.group));
    let fencing = pod.fencing.as_deref();
    if let (Some(stamp), Some(group)) = (&stamp, stamped_by)
        && pod.is_active(&group.routing)
    {
        let expected = FencingToken { key: &group.key, token: stamp.token }.to_string();
        // Others may remove it, but not write one.
        let removed = fencing.is_none()
            && before.is_some_and(|before| before.is_active(&group.routing) && before.stamp == pod.stamp);
        let text = format!("is active with the stamp {stamp} and the fencing token {fencing:?}");
        return (!removed && fencing != Some(&expected)).then_some((Invariant::GrantedAndDeclared, text));
    }
    let fencing = fencing?;
    let mut known = groups.values().filter(|group| group.namespace == change.id.namespace);
    // With `deletionPolicy: Retain` a pod loses its stamp and nothing else.
    let active = known.any(|group| pod.is_active(&group.routing));
    // Others may remove the label. The operator never removes it alone.
    let label_removed = stamped_by.is_some_and(|group| pod.role(&group.routing).is_none());
    let text = format!("is not active, but has the fencing token {fencing}");
    (!active && !label_removed).then_some((Invariant::OneActive, text))
}
