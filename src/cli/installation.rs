//! The installation of the operator that a command is about.

use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};

use crate::api::{HumanDuration, Sighting};

/// Where the operator runs, and which groups it manages.
#[derive(Clone, Debug, Args)]
pub struct InstallationArgs {
    /// Name of the operator's Deployment
    #[arg(long, value_name = "NAME")]
    pub deployment: String,
    /// Namespace of the Deployment
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub deployment_namespace: String,
    /// Namespaces of the groups; all namespaces if empty
    #[arg(long, value_name = "NAME,...", env = "LEADERGROUP_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Time limit for the whole command
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub timeout: HumanDuration,
}

impl InstallationArgs {
    /// The Deployments in the operator's namespace.
    pub(super) fn deployments(&self, client: &Client) -> Api<Deployment> {
        Api::namespaced(client.clone(), &self.deployment_namespace)
    }

    /// The groups of each namespace, or those of all, with a name for people.
    pub(super) fn groups(&self, client: &Client) -> Vec<(&str, Api<Sighting>)> {
        if self.namespaces.is_empty() {
            return vec![("all namespaces", Api::all(client.clone()))];
        }
        let scoped = |name| (name, Api::namespaced(client.clone(), name));
        self.namespaces.iter().map(String::as_str).map(scoped).collect()
    }
}
