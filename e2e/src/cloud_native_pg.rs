//! The operator of CloudNativePG on the cluster, installed by the manifests of its release.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::cluster::Cluster;
use crate::command::{LIMIT, output, output_with_input};
use crate::images::{Content, Image};
use crate::machine::wait_until;
use crate::programs::{CLOUD_NATIVE_PG_VERSION, build_cloud_native_pg};
use crate::state;

/// The namespace of the operator.
pub const NAMESPACE: &str = "cnpg-system";
/// Time for the operator to start.
const READY: Duration = Duration::from_mins(2);
/// How the release's manifests differ from ours: nothing is pulled, and when a node is lost, another replica of the
/// operator must be running.
const CHANGES: [(&str, &str); 2] = [
    ("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent"),
    ("\n  replicas: 1\n", "\n  replicas: 2\n"),
];

impl Cluster {
    /// Builds the operator of CloudNativePG, installs two replicas of it, and waits until it accepts clusters.
    pub async fn install_cloud_native_pg(&self) -> Result<()> {
        let (programs, manifests) = build_cloud_native_pg(&state::cache()?).await?;
        let image = Image {
            name: format!("ghcr.io/cloudnative-pg/cloudnative-pg:{CLOUD_NATIVE_PG_VERSION}"),
            content: Content::CloudNativePg { manager: programs.path("manager")? },
        };
        self.load_image(&image).await.context("loading the operator of CloudNativePG")?;
        let mut text =
            fs::read_to_string(&manifests).with_context(|| format!("cannot read {}", manifests.display()))?;
        for (released, ours) in CHANGES {
            ensure!(text.matches(released).count() == 1, "{} has no {released:?}", manifests.display());
            text = text.replace(released, ours);
        }
        // The CRDs are too large for an annotation.
        let apply = self.kubectl(&["apply", "--server-side", "--force-conflicts", "--filename", "-"])?;
        output_with_input(apply, &text, LIMIT).await.context("installing CloudNativePG")?;
        let rollout = ["rollout", "status", "--namespace", NAMESPACE, "deployment/cnpg-controller-manager"];
        output(self.kubectl(&rollout)?, READY).await.context("waiting for the operator of CloudNativePG")?;
        let accepts = ["create", "--dry-run=server", "--filename", "-"];
        wait_until("the webhooks of CloudNativePG", READY, async || {
            Ok(output_with_input(self.kubectl(&accepts)?, SMALLEST, LIMIT).await.is_ok())
        })
        .await
    }

    fn kubectl(&self, args: &[&str]) -> Result<Command> {
        let program: PathBuf = self.program("kubectl")?;
        let mut kubectl = Command::new(program);
        kubectl.arg("--kubeconfig").arg(self.kubeconfig()).args(args);
        Ok(kubectl)
    }
}

/// A cluster that is only checked.
const SMALLEST: &str = "
apiVersion: postgresql.cnpg.io/v1
kind: Cluster
metadata: { name: smallest, namespace: default }
spec: { instances: 1, storage: { size: 1Gi } }
";
