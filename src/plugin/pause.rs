//! `pause` and `resume`: the field `spec.paused`.

use kube::api::Patch;
use serde_json::json;

use super::{
    cluster::{Cluster, GroupName},
    failure::Failure,
    switchover::as_plugin,
};
use crate::api::LeaderGroup;

/// Sets `spec.paused`. Returns what to print.
pub(super) async fn set_paused(cluster: &Cluster, name: &GroupName, paused: bool) -> Result<String, Failure> {
    let before = cluster.group(name).await?;
    if before.spec.paused != paused {
        let api = cluster.of::<LeaderGroup>(Some(&name.namespace));
        let patch = Patch::Merge(json!({ "spec": { "paused": paused } }));
        let what = if paused { "pause the group" } else { "resume the group" };
        cluster.call(what, api.patch(&name.name, &as_plugin(), &patch)).await?;
    }
    Ok(told(name, &before, paused))
}

fn told(name: &GroupName, before: &LeaderGroup, paused: bool) -> String {
    let GroupName { namespace, name } = name;
    let active = before.status.as_ref().and_then(|status| status.active.as_ref());
    let kept = match active {
        Some(active) => format!("{} stays active, whatever happens to it", active.pod),
        None => "no pod is active, and none becomes active".to_owned(),
    };
    match (paused, before.spec.paused) {
        (true, already) => {
            let already = if already { " already" } else { "" };
            format!(
                "{namespace}/{name} is paused{already}: {kept}.\n\
                 To end this: kubectl leadergroup resume -n {namespace} {name}\n"
            )
        }
        (false, true) => format!("{namespace}/{name} is resumed: a pod that fails is replaced again.\n"),
        (false, false) => format!("{namespace}/{name} was not paused.\n"),
    }
}
