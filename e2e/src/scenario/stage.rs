//! The stage: a cluster, the operator on it, and a recording of everything.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use leadergroup::api::LeaderGroup;
use serde_json::Value;
use tokio::process::Command;

use super::{Operator, Report, Together, eventually};
use crate::{
    cluster::Cluster,
    command,
    history::Recorder,
    images::{self, Image},
    provider::Provider,
};

/// Variables that a nested Cargo inherits from the outer one.
const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS"];
/// Time for the operator to start, or for the pods of a namespace to be gone, on a busy machine.
const READY: Duration = Duration::from_mins(2);

/// State shared by all scenarios.
pub struct Stage {
    /// The cluster.
    pub provider: Provider,
    /// A client of its administrator.
    pub kube: Client,
    /// The operator.
    pub operator: Operator,
    /// The values of the operator's release; `None` if the operator was installed by others.
    pub values: Option<Value>,
    /// The measurements.
    pub report: Report,
    /// The recording of the whole cluster, if etcd can be read. Otherwise each scenario records its namespace.
    pub recorder: Option<Recorder>,
    /// What the scenarios leave for the checks of all of them together.
    pub together: Together,
    /// `leadergroup-e2e`, for clients inside a node's network.
    pub program: PathBuf,
}

impl Stage {
    /// Uses the cluster that the environment names, starts to record, and makes sure that the operator is running
    /// there.
    ///
    /// `program` is `leadergroup-e2e`; `operator` is the `leadergroup` program for the image on our own cluster.
    pub async fn start(provider: Provider, program: &Path, operator: &Path) -> Result<Rc<Self>> {
        let kube = provider.client().await?;
        let recorder =
            provider.faults().map(|own| Recorder::of_etcd(own.etcd_url(), &own.database().admin_url()));
        let mut stage = Self {
            operator: Operator::on(&provider).await?,
            values: None,
            report: Report::default(),
            together: Together::default(),
            program: program.to_path_buf(),
            provider,
            kube,
            recorder,
        };
        let values = match stage.provider.faults() {
            Some(cluster) => {
                cluster
                    .load_image(&Image::operator(images::OPERATOR, operator))
                    .await
                    .context("loading the operator")?;
                let agent = Image::supervised(&beside("leadergroup-agent")?);
                cluster.load_image(&agent).await.context("loading the agent")?;
                Some(stage.operator.with_database(&cluster.database_url_in_cluster()))
            }
            None => stage.values_elsewhere().await?,
        };
        if let Some(values) = &values {
            stage.operator.install(values).await.context("installing the operator")?;
        }
        stage.values = values;
        stage.operator.ready(READY).await?;
        Ok(Rc::new(stage))
    }

    /// On an existing cluster, an installed operator is used. Otherwise it is installed with the values in the file
    /// named by `$LEADERGROUP_HELM_VALUES` (the cluster must be able to pull its image).
    async fn values_elsewhere(&self) -> Result<Option<Value>> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.kube.clone());
        if crds.get_opt("leadergroups.leadergroup.dev").await?.is_some()
            && !self.operator.replicas().await?.is_empty()
        {
            return Ok(None);
        }
        if let Some(file) = std::env::var_os("LEADERGROUP_HELM_VALUES") {
            let text =
                std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            return serde_saphyr::from_str(&text).context("the values for Helm").map(Some);
        }
        Ok(Some(
            self.provider
                .database_url_in_cluster()
                .map_or_else(|| serde_json::json!({}), |url| self.operator.with_database(&url)),
        ))
    }

    /// Deletes namespaces and waits until their pods and groups are gone. Otherwise the faults of the next scenario,
    /// such as a cordoned node, would reach their groups, and nothing would explain why they fail over. Kubernetes
    /// removes the other objects and the namespaces many seconds later; no scenario depends on that.
    pub(super) async fn delete_namespaces(&self, names: &[&str]) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.kube.clone());
        for name in names {
            let deleted = namespaces.delete(name, &DeleteParams::default()).await;
            deleted.with_context(|| format!("deleting the namespace {name}"))?;
        }
        let all = ListParams::default();
        for name in names {
            let pods: Api<Pod> = Api::namespaced(self.kube.clone(), name);
            let groups: Api<LeaderGroup> = Api::namespaced(self.kube.clone(), name);
            eventually("the pods and groups of the namespace to be gone", READY, async || {
                let (pods, groups) = (pods.list_metadata(&all).await?, groups.list_metadata(&all).await?);
                let metadata = pods.iter().map(|pod| &pod.metadata);
                let metadata = metadata.chain(groups.iter().map(|group| &group.metadata));
                let left: Vec<_> = metadata.filter_map(|found| found.name.as_deref()).collect();
                ensure!(left.is_empty(), "{left:?} in {name} are still there");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Creates a namespace, after one of the same name whose deletion has not ended yet.
    pub async fn create_namespace(&self, name: &str) -> Result<Namespace> {
        let namespaces: Api<Namespace> = Api::all(self.kube.clone());
        eventually("a namespace of the same name to be gone", READY, async || {
            let earlier = namespaces.get_opt(name).await?;
            let is_going = earlier.is_some_and(|found| found.metadata.deletion_timestamp.is_some());
            ensure!(!is_going, "{name} is still there");
            Ok(())
        })
        .await?;
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        created.with_context(|| format!("creating the namespace {name}"))
    }

    /// The cluster with fault injection, or an error if this is not our own cluster.
    pub fn own(&self) -> Result<&Cluster> {
        self.provider.faults().context("this scenario needs its own cluster")
    }

    /// A `kubectl` command for this cluster.
    pub fn kubectl(&self) -> Result<Command> {
        let program = match self.provider.faults() {
            Some(cluster) => cluster.program("kubectl")?,
            None => PathBuf::from("kubectl"),
        };
        let mut kubectl = Command::new(program);
        kubectl.arg("--kubeconfig").arg(self.provider.kubeconfig()).kill_on_drop(true);
        Ok(kubectl)
    }

    /// Runs `kubectl` and returns its output.
    pub async fn run_kubectl(&self, args: &[&str]) -> Result<String> {
        let mut kubectl = self.kubectl()?;
        kubectl.args(args);
        command::output(kubectl, command::LIMIT).await
    }

    /// Applies manifests to a namespace.
    pub async fn apply(&self, namespace: &str, manifests: &str) -> Result<()> {
        let mut kubectl = self.kubectl()?;
        kubectl.args(["-n", namespace, "apply", "-f", "-"]);
        command::output_with_input(kubectl, manifests, command::LIMIT).await.map(drop)
    }
}

/// Builds the operator and the agent from the current working tree, so that the tests never use an old one.
pub async fn build_operator() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        // The whole workspace, so that dependencies have the same features as in other builds and are not built
        // again.
        .args(["build", "--quiet", "--workspace", "--bin", "leadergroup", "--bin", "leadergroup-agent"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .kill_on_drop(true);
    // The variables of an outer `cargo test` would make build scripts run again, and half of all dependencies would
    // be rebuilt.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_") && !KEPT.contains(&name)) {
            build.env_remove(name);
        }
    }
    command::output(build, Duration::from_mins(30)).await.context("building the operator")?;
    beside("leadergroup")
}

/// A program in the same directory as this one.
pub fn beside(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell which program this is")?;
    let mut folders = this.ancestors().skip(1).take(2);
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()));
    found.with_context(|| {
        format!("{name} is not beside {}: build it with `cargo build --workspace`", this.display())
    })
}

/// Cargo's target directory, which contains this program. Used for reports and dumps.
pub fn target_folder() -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell which program this is")?;
    let mut folders = this.ancestors();
    let found = folders.find(|folder| folder.join("CACHEDIR.TAG").is_file());
    Ok(found.or(this.parent()).context("this program is in no folder")?.to_path_buf())
}
