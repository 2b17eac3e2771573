//! `leadergroup switchover`: requests that another pod of a group becomes active.
//!
//! The request is an annotation of the group. The operator carries it out once, and reports the result in the status.

use std::time::Duration;

use clap::Args;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::wait::{self, await_condition},
};
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use super::group_name::split;
use crate::{
    api::{
        HumanDuration, LeaderGroup, LeaderGroupStatus, SWITCHOVER_ANNOTATION, SWITCHOVER_TO_ANNOTATION,
        SwitchoverResult,
    },
    routing::words,
};

/// Arguments of `switchover`.
#[derive(Clone, Debug, Args)]
pub struct SwitchoverArgs {
    /// The group: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// The group's namespace; default: the one of the kubeconfig's context
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The pod to make active; default: the one that would follow after a failure
    #[arg(long, value_name = "POD")]
    pub to: Option<String>,
    /// Wait for the result, and print it
    #[arg(long)]
    pub wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "40s")]
    pub timeout: HumanDuration,
}

/// Why there was no switchover.
#[derive(Debug, thiserror::Error)]
pub enum SwitchoverError {
    /// The request could not be made.
    #[error("the switchover of {group} could not be requested: {}", words(error))]
    Api {
        /// Namespace and name.
        group: String,
        /// The client's error, whose causes are part of this one's text.
        error: Box<kube::Error>,
    },
    /// The result could not be read.
    #[error("the switchover of {group} is requested, and its result could not be read: {error}")]
    Watch {
        /// Namespace and name.
        group: String,
        /// The error of the watch.
        error: Box<wait::Error>,
    },
    /// The operator refused the request.
    #[error("the switchover of {group} is refused: {why}")]
    Refused {
        /// Namespace and name.
        group: String,
        /// The operator's words.
        why: String,
    },
    /// The group was deleted.
    #[error("{0} was deleted")]
    Gone(String),
    /// There was no result in time.
    #[error(
        "the switchover of {group} is requested, and there is no result after {after:?}: check that the operator runs \
         (kubectl describe leadergroup shows why a group is not ready), and look at status.switchover"
    )]
    Timeout {
        /// Namespace and name.
        group: String,
        /// How long the command waited.
        after: Duration,
    },
}

/// Requests the switchover, and waits for it if that is wanted. Returns what to print.
pub async fn switchover(client: Client, args: &SwitchoverArgs) -> Result<String, SwitchoverError> {
    let (namespace, name) = split(&args.group, args.namespace.as_deref());
    let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
    let group = format!("{namespace}/{name}");
    let groups: Api<LeaderGroup> = Api::namespaced(client, &namespace);
    let request = Uuid::new_v4().to_string();
    let annotations = json!({ SWITCHOVER_ANNOTATION: request, SWITCHOVER_TO_ANNOTATION: args.to });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let params =
        PatchParams { field_manager: Some("kubectl-leadergroup".to_owned()), ..PatchParams::default() };
    let asked = timeout(args.timeout.0, groups.patch_metadata(name, &params, &patch)).await;
    let after = args.timeout.0;
    let late = |_| SwitchoverError::Timeout { group: group.clone(), after };
    let failed = |error| SwitchoverError::Api { group: group.clone(), error: Box::new(error) };
    asked.map_err(late)?.map_err(failed)?;
    if !args.wait {
        return Ok(format!("requested; the result will be in status.switchover of {group}\n"));
    }
    let is_answered = |object: Option<&LeaderGroup>| {
        object.is_none_or(|object| result(object.status.as_ref(), &request).is_some())
    };
    let answered = timeout(after, await_condition(groups, name, is_answered)).await.map_err(late)?;
    let broken = |error| SwitchoverError::Watch { group: group.clone(), error: Box::new(error) };
    let status = answered.map_err(broken)?.and_then(|object| object.status);
    match result(status.as_ref(), &request) {
        Some((SwitchoverResult::Done, message)) => Ok(format!("{message}\n")),
        Some((SwitchoverResult::Refused, why)) => Err(SwitchoverError::Refused { group, why }),
        None => Err(SwitchoverError::Gone(group)),
    }
}

/// The result of this request, in words.
fn result(status: Option<&LeaderGroupStatus>, request: &str) -> Option<(SwitchoverResult, String)> {
    let last = status?.switchover.as_ref().filter(|last| last.request == request)?;
    Some((last.result, last.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_result_of_this_request_is_an_answer() {
        let status = serde_json::json!({
            "switchover": { "request": "r1", "result": "Refused", "message": "no" },
        });
        let status: LeaderGroupStatus = serde_json::from_value(status).expect("a status");
        assert_eq!(result(Some(&status), "r1"), Some((SwitchoverResult::Refused, "no".to_owned())));
        assert_eq!(result(Some(&status), "r2"), None);
        assert_eq!(result(None, "r1"), None);
    }
}
