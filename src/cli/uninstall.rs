//! `leadergroup uninstall`: removes the finalizer from all groups before the operator is removed.
//!
//! A group carries the operator's finalizer. Without an operator that removes it, the group, its namespace and the
//! custom resource definition could never be deleted. So this command first stops the operator, because a running one
//! would add the finalizer again. Then it clears the labels and removes the finalizers. It can be repeated at any
//! point.

use std::time::Duration;

use clap::Args;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch},
};
use serde_json::json;

use super::installation::InstallationArgs;
use crate::{
    api::{LeaderGroup, Sighting},
    routing::{GroupRef, Router, RoutingError, as_manager, words},
};

/// Arguments of `uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// The installation. Its Deployment is scaled to 0 first.
    #[command(flatten)]
    pub installation: InstallationArgs,
    /// Keep the role labels, so that the active pods keep serving, whatever the groups' deletionPolicy says. Use this
    /// if the operator will be installed again for the same groups
    #[arg(long)]
    pub keep_labels: bool,
}

/// Why the finalizer was not removed from all groups.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// The API server refused to stop the operator.
    #[error("could not {what}: {}; {}, and run it again", words(error), remedy(error))]
    Api {
        /// The purpose of the call.
        what: &'static str,
        /// The client's error, whose causes are part of this one's text.
        error: Box<kube::Error>,
    },
    /// The operator's pods did not end in time.
    #[error(
        "the operator is still running after {after:?} ({pods}) and would add its finalizer again: delete these pods, and \
         run this again"
    )]
    StillRunning {
        /// How long the command waited.
        after: Duration,
        /// The names of the pods.
        pods: String,
    },
    /// The time limit was exceeded.
    #[error(
        "the finalizer could not be removed from all groups within {0:?}: run this again, if necessary with a longer \
         --timeout"
    )]
    Timeout(Duration),
    /// The finalizer could not be removed from some groups, or the groups of a namespace could not be listed. All
    /// other groups were handled.
    #[error(
        "the finalizer could not be removed from all groups, {} problems: {}; correct them (remove a deleted namespace from \
         the chart's watchNamespaces), and run this again",
        .0.len(),
        .0.join("; ")
    )]
    Incomplete(Vec<String>),
}

/// How many groups are handled concurrently.
const PARALLEL: usize = 16;
/// How many objects one list request returns.
const PAGE: u32 = 500;
/// How long one write may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to check whether the operator's pods have ended.
const POLL: Duration = Duration::from_millis(200);

/// Stops the operator and removes the finalizer from all groups. Returns the number of groups.
pub async fn uninstall(client: Client, args: &UninstallArgs) -> Result<usize, UninstallError> {
    let mut running = String::new();
    let all = async {
        stop(&client, &args.installation, &mut running).await?;
        release(&client, args).await
    };
    let outcome = tokio::time::timeout(args.installation.timeout.0, all).await;
    outcome.unwrap_or_else(|_| {
        let after = args.installation.timeout.0;
        Err(if running.is_empty() {
            UninstallError::Timeout(after)
        } else {
            UninstallError::StillRunning { after, pods: running }
        })
    })
}

/// Scales the Deployment to 0 and waits until none of its pods is running. `running` is set to the names of the pods
/// that still are.
async fn stop(client: &Client, args: &InstallationArgs, running: &mut String) -> Result<(), UninstallError> {
    let failed = |what| move |error| UninstallError::Api { what, error: Box::new(error) };
    let patch = json!({ "spec": { "replicas": 0 } });
    let scaled =
        args.deployments(client).patch_scale(&args.deployment, &as_manager(), &Patch::Merge(&patch)).await;
    let scale = match scaled {
        // The Deployment does not exist, so no operator is running.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        scaled => scaled.map_err(failed("scale the operator's Deployment to 0"))?,
    };
    let selector = scale.status.and_then(|status| status.selector).unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &args.deployment_namespace);
    loop {
        let found = pods.list(&ListParams::default().labels(&selector)).await;
        let found = found.map_err(failed("list the operator's pods"))?;
        let ended = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let left: Vec<String> =
            found.items.iter().filter(|pod| !ended(pod)).map(ResourceExt::name_any).collect();
        *running = left.join(", ");
        if left.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn release(client: &Client, args: &UninstallArgs) -> Result<usize, UninstallError> {
    // An error in one namespace, such as a deleted one whose RoleBinding is gone, does not stop the others.
    let (mut groups, mut failed) = (Vec::new(), Vec::new());
    for (scope, api) in args.installation.groups(client) {
        if let Err(error) = list(&api, &mut groups).await {
            failed.push(format!("could not list the groups of {scope}: {}", words(&error)));
        }
    }
    let router = Router::new(client.clone(), CALL_TIMEOUT);
    let releases =
        groups.iter().filter_map(|group| Some((group, GroupRef::of(group)?))).map(|(group, reference)| {
            let router = &router;
            async move {
                let outcome = release_one(router, group, &reference, args.keep_labels).await;
                outcome.map_err(|error| format!("{}/{}: {error}", reference.namespace, reference.name))
            }
        });
    let outcomes: Vec<Result<(), String>> = stream::iter(releases).buffer_unordered(PARALLEL).collect().await;
    failed.extend(outcomes.into_iter().filter_map(Result::err));
    if failed.is_empty() { Ok(groups.len()) } else { Err(UninstallError::Incomplete(failed)) }
}

/// What helps against an error of the first call.
fn remedy(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) if status.code == 401 => "check this account's credentials",
        kube::Error::Api(status) if status.code == 403 => {
            "give this account the rights that the chart's roles have"
        }
        kube::Error::Api(_) => "put that right",
        _ => {
            "check that the API server runs and can be reached from here, at the address that KUBECONFIG or the pod's \
             environment gives"
        }
    }
}

/// Adds the groups. A group that cannot be decoded is replaced by its substitute for deletion.
async fn list(api: &Api<Sighting>, groups: &mut Vec<LeaderGroup>) -> Result<(), kube::Error> {
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = match api.list(&params).await {
            // Without the CRD there are no groups.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            page => page?,
        };
        let remains = |found: Sighting| found.0.unwrap_or_else(|unreadable| unreadable.remains(None));
        groups.extend(page.items.into_iter().map(remains));
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None => return Ok(()),
        }
    }
}

async fn release_one(
    router: &Router,
    group: &LeaderGroup,
    reference: &GroupRef,
    keep_labels: bool,
) -> Result<(), RoutingError> {
    if !keep_labels {
        // The router finds the pods with the group's stamp; no other pods are ours.
        let cleared = router.clear(reference, group.spec.deletion_policy, &[]).await;
        // When a namespace is deleted, the rights to its pods may be gone before its groups. The labels do not matter
        // then.
        let leaves = group.metadata.deletion_timestamp.is_some();
        cleared.or_else(|error| if leaves && error.is_refusal() { Ok(()) } else { Err(error) })?;
    }
    router.set_finalizer(reference, false).await
}
