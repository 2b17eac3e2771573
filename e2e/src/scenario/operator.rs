//! The operator on the cluster: installed by its chart, as a user would.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Pod, Secret},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, LogParams, ObjectMeta, PostParams},
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::eventually;
use crate::{cluster::Cluster, command, provider::Provider};

/// The release, and the name of the operator's Deployment.
pub const RELEASE: &str = "leadergroup";
/// The release's namespace.
pub const NAMESPACE: &str = "leadergroup";
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/leadergroup");
/// Makes the API server refuse pods that violate the "restricted" Pod Security Standard.
const RESTRICTED: (&str, &str) = ("pod-security.kubernetes.io/enforce", "restricted");
const SELECTOR: &str = "app.kubernetes.io/component=operator,app.kubernetes.io/instance=leadergroup";
/// The Secret with the certificate of the database's CA.
const AUTHORITY: &str = "database-authority";
const REPLACED: Duration = Duration::from_mins(1);
const HELM: Duration = Duration::from_mins(3);

/// The operator's release.
#[derive(Clone)]
pub struct Operator {
    helm: PathBuf,
    kubeconfig: PathBuf,
    kube: Client,
    /// The certificate of the database's CA, on our own cluster.
    authority: Option<PathBuf>,
}

impl Operator {
    /// The release on a cluster, installed or not.
    pub async fn on(provider: &Provider) -> Result<Self> {
        let helm = match provider.faults() {
            Some(cluster) => cluster.program("helm")?,
            None => PathBuf::from("helm"),
        };
        let authority = provider.faults().map(Cluster::authority);
        Ok(Self { helm, kubeconfig: provider.kubeconfig(), kube: provider.client().await?, authority })
    }

    /// Values for an existing database, with TLS, and for managed endpoints. The certificate is verified if we have
    /// that of the CA.
    pub fn with_database(&self, url: &str) -> Value {
        let secret = self.authority.as_ref().map_or("", |_| AUTHORITY);
        json!({
            "postgresql": { "mode": "External" },
            "database": { "url": url, "caSecret": { "name": secret } },
            "managedEndpoints": { "enabled": true },
            "podDeletion": { "enabled": true },
        })
    }

    /// Installs or upgrades the release and waits until Helm reports it ready.
    pub async fn install(&self, values: &Value) -> Result<()> {
        self.apply(values, true).await
    }

    /// The same with a chart of another version.
    pub async fn install_version(&self, version: &str, values: &Value) -> Result<()> {
        let copy = tempfile::tempdir()?;
        command::run("cp", ["-r", CHART, &copy.path().display().to_string()]).await?;
        let chart = copy.path().join("leadergroup");
        let about = chart.join("Chart.yaml");
        let text = fs::read_to_string(&about)?;
        let lines = text.lines().map(|line| match line.split_once(": ") {
            Some((key @ ("version" | "appVersion"), _)) => format!("{key}: {version}\n"),
            _ => format!("{line}\n"),
        });
        fs::write(&about, lines.collect::<String>())?;
        self.apply_chart(&chart.display().to_string(), values, true).await
    }

    /// Undoes the last upgrade.
    pub async fn roll_back(&self) -> Result<()> {
        let mut helm = self.helm();
        helm.args(["rollback", RELEASE, "--wait", "--timeout", "150s"]);
        command::output(helm, HELM).await.map(drop)
    }

    /// Installs or upgrades the release, optionally without waiting, for values with which it cannot become ready.
    pub async fn apply(&self, values: &Value, wait: bool) -> Result<()> {
        self.apply_chart(CHART, values, wait).await
    }

    async fn apply_chart(&self, chart: &str, values: &Value, wait: bool) -> Result<()> {
        if let Some(authority) = &self.authority {
            self.hand_over(authority).await.context("the Secret with the database's authority")?;
        }
        let mut helm = self.helm();
        helm.args(["upgrade", "--install", RELEASE, chart, "--create-namespace", "--values", "-"]);
        if wait {
            helm.args(["--wait", "--timeout", "150s"]);
        }
        // On standard input, because the values contain the database's password.
        command::output_with_input(helm, &values.to_string(), HELM).await.map(drop)
    }

    /// Creates a Secret with the certificate in the release's namespace, as a user would before `helm install`.
    async fn hand_over(&self, authority: &Path) -> Result<()> {
        let metadata = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let namespaces: Api<Namespace> = Api::all(self.kube.clone());
        // The release must work under the strictest Pod Security Standard.
        let labels = [(RESTRICTED.0.to_owned(), RESTRICTED.1.to_owned())].into();
        let metadata_of_namespace = ObjectMeta { labels: Some(labels), ..metadata(NAMESPACE) };
        let namespace = Namespace { metadata: metadata_of_namespace, ..Namespace::default() };
        created(namespaces.create(&PostParams::default(), &namespace).await)?;
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), NAMESPACE);
        let pem = fs::read_to_string(authority)?;
        let secret = Secret {
            metadata: metadata(AUTHORITY),
            string_data: Some([("ca.crt".to_owned(), pem)].into()),
            ..Secret::default()
        };
        created(secrets.create(&PostParams::default(), &secret).await)
    }

    /// Uninstalls the release and waits for its hooks.
    pub async fn uninstall(&self) -> Result<()> {
        let mut helm = self.helm();
        helm.args(["uninstall", RELEASE, "--wait", "--timeout", "150s"]);
        command::output(helm, HELM).await.map(drop)
    }

    fn helm(&self) -> Command {
        let mut helm = Command::new(&self.helm);
        helm.arg("--kubeconfig").arg(&self.kubeconfig).args(["--namespace", NAMESPACE]).kill_on_drop(true);
        helm
    }

    /// The API of its pods' namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.kube.clone(), NAMESPACE)
    }

    /// Its pods that are not being deleted.
    pub async fn replicas(&self) -> Result<Vec<Pod>> {
        let list = self.pods().list(&ListParams::default().labels(SELECTOR)).await?;
        Ok(list.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
    }

    /// Waits until every replica is ready, and returns their names and UIDs.
    pub async fn ready(&self, within: Duration) -> Result<BTreeMap<String, String>> {
        let deployments: Api<Deployment> = Api::namespaced(self.kube.clone(), NAMESPACE);
        eventually("every replica of the operator to be ready", within, async || {
            let deployment = deployments.get(RELEASE).await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
            let replicas = self.replicas().await?;
            let ready = replicas.iter().filter(|pod| is_ready(pod)).count();
            ensure!(
                ready == usize::try_from(wanted)? && replicas.len() == ready,
                "{ready} of {wanted} are ready"
            );
            let id = |pod: Pod| Some((pod.metadata.name?, pod.metadata.uid?));
            Ok(replicas.into_iter().filter_map(id).collect())
        })
        .await
    }

    /// Deletes its pods by force, and returns the names of their replacements when they run.
    pub async fn replace(&self) -> Result<Vec<String>> {
        let names = |pods: Vec<Pod>| -> Vec<String> {
            pods.into_iter().filter_map(|pod| pod.metadata.name).collect()
        };
        let before = names(self.replicas().await?);
        for name in &before {
            self.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
        }
        eventually("the operator's pods to be replaced", REPLACED, async || {
            let running = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
            let pods: Vec<Pod> = self.replicas().await?.into_iter().filter(running).collect();
            let now = names(pods);
            ensure!(
                now.len() == before.len() && !now.iter().any(|name| before.contains(name)),
                "{now:?} run"
            );
            Ok(now)
        })
        .await
    }

    /// The number of container restarts of its current pods.
    pub async fn restarts(&self) -> Result<i32> {
        let statuses =
            |pod: &Pod| pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        Ok(self.replicas().await?.iter().flat_map(statuses).map(|status| status.restart_count).sum())
    }

    /// The last `lines` of the log of each replica.
    pub async fn logs(&self, lines: i64) -> Result<String> {
        let mut texts = Vec::new();
        for pod in self.replicas().await? {
            let name = pod.metadata.name.context("a pod without a name")?;
            for (previous, which) in [(true, " (before)"), (false, "")] {
                let params = LogParams { tail_lines: Some(lines), previous, ..LogParams::default() };
                // There is no such log if the container was never restarted, or has not started yet.
                if let Ok(log) = self.pods().logs(&name, &params).await {
                    texts.push(format!("==> {name}{which}\n{log}\n"));
                }
            }
        }
        Ok(texts.concat())
    }
}

/// An existing object is no error.
fn created<K>(answer: kube::Result<K>) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        answer => answer.map(drop).map_err(Into::into),
    }
}

/// Whether a pod's condition Ready is True.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}
