//! `leadergroup ready`: waits until an installation works, for people and for the test of the chart.

use std::{fmt::Write as _, time::Duration};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Client, api::ListParams};

use super::installation::InstallationArgs;
use crate::routing::words;

/// The installation did not work in time.
#[derive(Debug, thiserror::Error)]
#[error("the installation is not ready after {after:?}: {problem}")]
pub struct NotReady {
    after: Duration,
    problem: String,
}

/// How often to look.
const POLL: Duration = Duration::from_millis(500);

/// Waits until all replicas of the operator are ready, and the API server serves LeaderGroups to this account. Returns
/// what it has seen.
pub async fn ready(client: Client, args: &InstallationArgs) -> Result<String, NotReady> {
    let mut problem = "the API server has not answered".to_owned();
    let wait = async {
        loop {
            match look(&client, args).await {
                Ok(seen) => return seen,
                Err(why) => problem = why,
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let outcome = tokio::time::timeout(args.timeout.0, wait).await;
    outcome.map_err(|_| NotReady { after: args.timeout.0, problem })
}

async fn look(client: &Client, args: &InstallationArgs) -> Result<String, String> {
    let deployment =
        args.deployments(client).get(&args.deployment).await.map_err(|error| {
            format!("the Deployment {} cannot be read: {}", args.deployment, words(&error))
        })?;
    let mut seen = replicas(&deployment)?;
    for (name, groups) in args.groups(client) {
        let first = groups.list(&ListParams::default().limit(1)).await;
        first.map_err(|error| format!("the LeaderGroups of {name} cannot be listed: {}", words(&error)))?;
        let _ = write!(seen, "\nthe API server lists the LeaderGroups of {name}");
    }
    Ok(seen)
}

/// Says how many replicas are ready, if all are, and all are of the newest revision.
fn replicas(deployment: &Deployment) -> Result<String, String> {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.as_ref();
    let ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
    let updated = status.and_then(|status| status.updated_replicas).unwrap_or(0);
    let observed = status.and_then(|status| status.observed_generation);
    let counted = format!("{ready} of {wanted} replicas of the operator are ready");
    if observed < deployment.metadata.generation || updated < wanted {
        return Err(format!("{counted}, {updated} of them are of the newest revision"));
    }
    if wanted == 0 || ready < wanted {
        return Err(format!("{counted}; see the logs of the others"));
    }
    Ok(counted)
}
