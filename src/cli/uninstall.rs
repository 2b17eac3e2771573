//! `leadergroup uninstall`: lets all groups go before the operator is removed.
//!
//! A group carries the operator's finalizer. Once nobody is there to take it off, the group, its namespace and the
//! custom resource definition could never be deleted. So this stops the operator first (a running one would put the
//! finalizer on again), settles the labels, and then takes the finalizers off. Everything here can be repeated.

use std::{error::Error as _, time::Duration};

use clap::Args;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    api::{HumanDuration, LeaderGroup, Sighting},
    routing::{GroupRef, Router, RoutingError},
};

/// Arguments of `uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// The operator's Deployment, which is scaled to 0 first
    #[arg(long, value_name = "NAME")]
    pub deployment: String,
    /// The Deployment's namespace
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub deployment_namespace: String,
    /// The namespaces whose groups are let go; all if there are none
    #[arg(long, value_name = "NAME,...", env = "LEADERGROUP_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// How long all of it may take
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub timeout: HumanDuration,
    /// Leave the role labels as they are, so that the active pods keep serving, whatever the groups' onDelete says: for
    /// an operator that is to come back to the same groups
    #[arg(long)]
    pub keep_labels: bool,
}

/// Why not all groups could be let go.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// The API server refused to stop the operator.
    #[error("could not {what}: {}; {}, and run it again", words(error), remedy(error))]
    Api {
        /// What was being done.
        what: &'static str,
        /// The client's error, whose causes are part of this one's text.
        error: Box<kube::Error>,
    },
    /// The operator's pods did not end in time.
    #[error(
        "the operator still runs after {after:?} ({pods}), and would put its finalizer on again: delete these pods, and \
         run it again"
    )]
    StillRunning {
        /// For how long it was waited.
        after: Duration,
        /// The names of the pods.
        pods: String,
    },
    /// The time was over.
    #[error("not all groups could be let go within {0:?}: run it again, if need be with a longer --timeout")]
    Timeout(Duration),
    /// Some groups could not be let go, or those of a namespace not be listed; all others were let go.
    #[error(
        "not all groups could be let go, {} problems: {}; put that right (of a namespace that is no more: take it out of \
         the chart's watchNamespaces), and run it again",
        .0.len(),
        .0.join("; ")
    )]
    Incomplete(Vec<String>),
}

/// How many groups are seen to at a time.
const PARALLEL: usize = 16;
/// How many objects are listed in one request.
const PAGE: u32 = 500;
/// How long one write may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked whether the operator's pods have ended.
const POLL: Duration = Duration::from_millis(200);

/// Stops the operator and lets all groups go. Returns how many there were.
pub async fn uninstall(client: Client, args: &UninstallArgs) -> Result<usize, UninstallError> {
    let mut running = String::new();
    let all = async {
        stop(&client, args, &mut running).await?;
        release(&client, args).await
    };
    let outcome = tokio::time::timeout(args.timeout.0, all).await;
    outcome.unwrap_or_else(|_| {
        let after = args.timeout.0;
        Err(if running.is_empty() {
            UninstallError::Timeout(after)
        } else {
            UninstallError::StillRunning { after, pods: running }
        })
    })
}

/// Scales the Deployment to 0 and waits until none of its pods runs. `running` names those that still do.
async fn stop(client: &Client, args: &UninstallArgs, running: &mut String) -> Result<(), UninstallError> {
    let failed = |what| move |error| UninstallError::Api { what, error: Box::new(error) };
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &args.deployment_namespace);
    let patch = json!({ "spec": { "replicas": 0 } });
    let scaled =
        deployments.patch_scale(&args.deployment, &PatchParams::default(), &Patch::Merge(&patch)).await;
    let scale = match scaled {
        // It is not there, so nothing runs.
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
    let scopes: Vec<(&str, Api<Sighting>)> = if args.namespaces.is_empty() {
        vec![("all namespaces", Api::all(client.clone()))]
    } else {
        let scoped = |name| (name, Api::namespaced(client.clone(), name));
        args.namespaces.iter().map(String::as_str).map(scoped).collect()
    };
    // What goes wrong in one namespace, such as one whose rights went with it, holds no other up.
    let (mut groups, mut failed) = (Vec::new(), Vec::new());
    for (scope, api) in &scopes {
        if let Err(error) = list(api, &mut groups).await {
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

/// The API server's own words, or the client's error with its causes.
fn words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} (HTTP {})", status.message, status.code);
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Some errors repeat their cause.
        let inner = error.to_string();
        if !text.contains(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = error.source();
    }
    text
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

/// Adds the groups; of one that cannot be read what is left: enough to let it go.
async fn list(api: &Api<Sighting>, groups: &mut Vec<LeaderGroup>) -> Result<(), kube::Error> {
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = match api.list(&params).await {
            // Without the definition there are no groups.
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
        // It finds those with the group's stamp by itself; no others are ours.
        let cleared = router.clear(reference, group.spec.on_delete, &[]).await;
        // A namespace that is deleted takes the rights to its pods away before its groups are gone; nobody misses their
        // labels.
        let leaves = group.metadata.deletion_timestamp.is_some();
        cleared.or_else(|error| if leaves && error.is_refusal() { Ok(()) } else { Err(error) })?;
    }
    router.set_finalizer(reference, false).await
}
