//! Where scenarios run: on a cluster of our own, with all faults, or on any existing cluster, without faults of nodes.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::cluster::{Cluster, client};

/// A Kubernetes for scenarios.
#[derive(Debug)]
pub enum Provider {
    /// Our own.
    Own(Box<Cluster>),
    /// An existing one: kind, k3s, a cloud's.
    Kubeconfig(Kubeconfig),
}

/// An existing cluster, by its kubeconfig file.
#[derive(Debug, Clone)]
pub struct Kubeconfig {
    /// The file.
    pub path: PathBuf,
    /// A database that the cluster's pods reach, if the scenario needs one: `$LEADERGROUP_DATABASE_URL`.
    pub database_url: Option<String>,
}

impl Provider {
    /// What `$LEADERGROUP_PROVIDER` says: `own` (the default: the running cluster, else a new one), or `kubeconfig`
    /// (the file that `$KUBECONFIG` names).
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

    /// A client of whoever the kubeconfig file names.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig()).await
    }

    /// The URL of a database that the operator can use from within the cluster.
    pub fn database_url_in_cluster(&self) -> Option<String> {
        match self {
            Self::Own(cluster) => Some(cluster.database_url_in_cluster()),
            Self::Kubeconfig(existing) => existing.database_url.clone(),
        }
    }

    /// The cluster whose machines can be made to fail. `None`: this scenario must do without.
    pub fn faults(&self) -> Option<&Cluster> {
        match self {
            Self::Own(cluster) => Some(cluster),
            Self::Kubeconfig(_) => None,
        }
    }
}
