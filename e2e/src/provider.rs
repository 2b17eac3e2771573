//! Where scenarios run: on our own cluster with all faults, or on any existing cluster without node faults.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::cluster::{Cluster, client};

/// A Kubernetes cluster for scenarios.
#[derive(Debug)]
pub enum Provider {
    /// Our own cluster.
    Own(Box<Cluster>),
    /// An existing cluster: kind, k3s, a cloud's.
    Kubeconfig(Kubeconfig),
}

/// An existing cluster, given by its kubeconfig file.
#[derive(Debug, Clone)]
pub struct Kubeconfig {
    /// The file.
    pub path: PathBuf,
    /// A database that the cluster's pods can reach, if the scenario needs one: `$LEADERGROUP_DATABASE_URL`.
    pub database_url: Option<String>,
}

impl Provider {
    /// The provider named by `$LEADERGROUP_PROVIDER`: `own` (the default: the running cluster, otherwise a new one)
    /// or `kubeconfig` (the file named by `$KUBECONFIG`).
    pub async fn from_environment() -> Result<Self> {
        let name = std::env::var("LEADERGROUP_PROVIDER").unwrap_or_default();
        match name.as_str() {
            "" | "own" => Ok(Self::Own(Box::new(Box::pin(Cluster::attach_or_start()).await?))),
            "kubeconfig" => {
                let path = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
                let path = PathBuf::from(
                    path.context("LEADERGROUP_PROVIDER=kubeconfig needs KUBECONFIG, naming one file")?,
                );
                if !path.is_file() {
                    bail!("KUBECONFIG={} is not a file", path.display());
                }
                Ok(Self::Kubeconfig(Kubeconfig {
                    path,
                    database_url: std::env::var("LEADERGROUP_DATABASE_URL").ok(),
                }))
            }
            other => bail!("LEADERGROUP_PROVIDER={other} is neither `own` nor `kubeconfig`"),
        }
    }

    /// The kubeconfig file.
    pub fn kubeconfig(&self) -> PathBuf {
        match self {
            Self::Own(cluster) => cluster.kubeconfig(),
            Self::Kubeconfig(existing) => existing.path.clone(),
        }
    }

    /// A client for the user in the kubeconfig file.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig()).await
    }

    /// The URL of a database that the operator can use in the cluster.
    pub fn database_url_in_cluster(&self) -> Option<String> {
        match self {
            Self::Own(cluster) => Some(cluster.database_url_in_cluster()),
            Self::Kubeconfig(existing) => existing.database_url.clone(),
        }
    }

    /// The cluster for fault injection. `None` if faults are not possible.
    pub fn faults(&self) -> Option<&Cluster> {
        match self {
            Self::Own(cluster) => Some(cluster),
            Self::Kubeconfig(_) => None,
        }
    }
}
