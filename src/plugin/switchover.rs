//! `switchover`: requests that another pod of a group becomes active.
//!
//! The request is an annotation of the group. The operator carries it out once, and reports the result in the status.

use kube::{
    api::{Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    args::SwitchoverArgs,
    cluster::{Cluster, GroupName},
    failure::Failure,
};
use crate::api::{
    LeaderGroup, LeaderGroupStatus, SWITCHOVER_ANNOTATION, SWITCHOVER_TO_ANNOTATION, SwitchoverResult,
};

/// The API server records changes under the plugin's name.
pub(super) fn as_plugin() -> PatchParams {
    PatchParams { field_manager: Some("kubectl-leadergroup".to_owned()), ..PatchParams::default() }
}

/// What became of a request.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// Namespace and name.
    group: String,
    /// The identifier of the request.
    request: String,
    /// None if it was not waited for.
    result: Option<SwitchoverResult>,
    /// In words.
    pub(super) message: String,
    /// Why it is no success: the request is refused, or there is no result in time.
    #[serde(skip)]
    pub(super) failure: Option<Failure>,
}

/// Requests the switchover, and waits for it if that is wanted.
pub(super) async fn switchover(
    cluster: &Cluster,
    name: &GroupName,
    args: &SwitchoverArgs,
) -> Result<Answer, Failure> {
    let GroupName { namespace, name: group } = name;
    let full = format!("{namespace}/{group}");
    let groups = cluster.of::<LeaderGroup>(Some(namespace));
    let request = Uuid::new_v4().to_string();
    let annotations = json!({ SWITCHOVER_ANNOTATION: request, SWITCHOVER_TO_ANNOTATION: args.to });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let what = format!("request the switchover of {namespace}/{group}");
    match cluster.call(&what, groups.patch_metadata(group, &as_plugin(), &patch)).await {
        Ok(_) => {}
        Err(failure) => return Err(cluster.unless_misspelt(name, failure).await),
    }
    if !args.wait {
        let message =
            format!("requested. To see the result: kubectl leadergroup status -n {namespace} {group}");
        return Ok(Answer { group: full, request, result: None, message, failure: None });
    }
    let is_answered = |object: Option<&LeaderGroup>| {
        object.is_none_or(|object| result(object.status.as_ref(), &request).is_some())
    };
    let requested = format!("the switchover of {namespace}/{group} is requested");
    let Ok(answered) = timeout(args.timeout.0, await_condition(groups, group, is_answered)).await else {
        let message = format!("there is no result after {}", args.timeout);
        let remedy = format!(
            "Check that the operator runs: kubectl leadergroup doctor -n {namespace} {group}\n\
             The request stays: an operator carries it out or refuses it as soon as one runs. To withdraw it: \
             `kubectl -n {namespace} annotate leadergroup {group} {SWITCHOVER_ANNOTATION}- {SWITCHOVER_TO_ANNOTATION}-`"
        );
        let failure = Some(Failure::new(format!("{requested}, and {message}"), remedy));
        return Ok(Answer { group: full, request, result: None, message, failure });
    };
    let status = answered.map_err(|error| {
        Failure::new(
            format!("{requested}, and its result could not be read: {error}"),
            format!("To see it: kubectl leadergroup status -n {namespace} {group}"),
        )
    })?;
    match result(status.and_then(|object| object.status).as_ref(), &request) {
        Some((result, message)) => {
            let refused = || Failure::new(format!("the switchover of {full} is refused: {message}"), "");
            let failure = (result == SwitchoverResult::Refused).then(refused);
            Ok(Answer { group: full, request, result: Some(result), message, failure })
        }
        None => Err(Failure::new(format!("{full} was deleted"), "")),
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
    fn an_answer_tells_programs_the_result_and_not_the_complaint() {
        let (group, request) = ("shop/web".to_owned(), "r1".to_owned());
        let (result, message) = (Some(SwitchoverResult::Refused), "it is paused".to_owned());
        let failure = Some(Failure::new("the switchover of shop/web is refused: it is paused", ""));
        let shown = serde_json::to_value(Answer { group, request, result, message, failure });
        let wanted = json!({
            "group": "shop/web", "request": "r1", "result": "Refused", "message": "it is paused",
        });
        assert_eq!(shown.expect("JSON"), wanted);
    }

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
