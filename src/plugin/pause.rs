//! `pause` and `resume`: the field `spec.paused`.

use std::{future::ready, pin::pin, time::Duration};

use kube::api::Patch;
use serde_json::json;
use tokio::{signal::ctrl_c, time::sleep};

use super::{
    cluster::{Cluster, GroupName},
    failure::Failure,
    switchover::as_plugin,
};
use crate::api::{HumanDuration, LeaderGroup};

const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

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

/// Pauses the group for a while, and resumes it then, or at once on Ctrl-C. Returns what to print in the end.
///
/// The time runs here and not in the operator: a decision of the operator depends on no wall clock. So a pause outlives
/// this program if it is killed.
pub(super) async fn pause_for(
    cluster: &Cluster,
    name: &GroupName,
    limit: HumanDuration,
    mut say: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<String, Failure> {
    if cluster.group(name).await?.spec.paused {
        let GroupName { namespace, name } = name;
        return Err(Failure::new(
            format!("{namespace}/{name} is paused already, and this command would end that"),
            format!("To end it: kubectl leadergroup resume -n {namespace} {name}"),
        ));
    }
    // The first poll catches the signal. From then on, Ctrl-C does not end the process while the group is paused.
    let mut interrupted = pin!(ctrl_c());
    tokio::select! {
        biased;
        _ = &mut interrupted => return Ok(String::new()),
        () = ready(()) => {}
    }
    let paused = set_paused(cluster, name, true).await?;
    say(&format!("{paused}It is resumed in {limit}, or at once on Ctrl-C. Let this command run.\n"))?;
    tokio::select! {
        () = sleep(limit.0) => {}
        _ = &mut interrupted => {}
    }
    let mut again = pin!(ctrl_c());
    loop {
        let failure = match set_paused(cluster, name, false).await {
            Ok(text) => return Ok(text),
            Err(failure) => failure,
        };
        say(&format!("{failure}\nIt is still paused. Trying again until it is resumed, or Ctrl-C.\n"))?;
        tokio::select! {
            () = sleep(PAUSE_AFTER_FAILURE) => {}
            _ = &mut again => return Err(failure),
        }
    }
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
