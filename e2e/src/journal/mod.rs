//! Programs that agents run, and the record of when they ran. Each program writes the time to a journal that no network
//! fault cuts off, and has no fence. Whatever happens to its pod, no two programs of a group run at the same moment
//! (I9).

mod terms;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, rbac::v1::RoleBinding};
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::{
    images,
    scenario::{Active, Scenario, TOLD, Workload, eventually, spread_over_nodes},
    state::RUN_DIR,
};
pub use terms::{Process, Terms};

/// Writes the machine's time to a file of its own, about a hundred times a second. It ignores SIGTERM for a while, and
/// leaves a process behind that goes on.
const WRITER: &str = r#"
journal() {
  read -r begin rest </proc/uptime
  while read -r up rest </proc/uptime; do echo "$up"; sleep 0.01; done >>"/journal/$LEADERGROUP_TOKEN.$LEADERGROUP_POD.$begin.$1"
}
(trap '' TERM; journal child) &
trap 'sleep 0.2; exit 0' TERM
journal own
"#;

/// How long the agents' leases are.
const LEASE: &str = "4s";

/// The journals of one group's programs.
pub struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// An empty one, for a scenario of this name.
    pub fn new(scenario: &str) -> Result<Self> {
        let folder = Path::new(RUN_DIR).join("journals").join(scenario);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// A group whose pods have agents, which run the program that writes to this journal.
    pub fn workload(&self, group: &str, replicas: i32) -> Result<Workload> {
        Ok(Workload {
            name: group.to_owned(),
            replicas,
            agent_lease: Some(LEASE),
            deployment: Some(Box::new(self.deployment(group, replicas)?)),
            ..Workload::default()
        })
    }

    fn deployment(&self, group: &str, replicas: i32) -> Result<Deployment> {
        let pod = json!({
            "terminationGracePeriodSeconds": 3,
            "volumes": [{ "name": "journal", "hostPath": { "path": self.folder, "type": "Directory" } }],
            "containers": [{
                "name": "worker",
                "image": images::SUPERVISED,
                "imagePullPolicy": "Never",
                "args": ["run", "--group", group, "--stop-timeout", "2", "--interval", "1",
                    "--", "/bin/sh", "-c", WRITER],
                "ports": [{ "name": "http", "containerPort": 9470 }],
                "readinessProbe": {
                    "httpGet": { "path": "/ready", "port": "http" }, "periodSeconds": 2, "timeoutSeconds": 1,
                },
                "volumeMounts": [{ "name": "journal", "mountPath": "/journal" }],
                "resources": {
                    "requests": { "cpu": "20m", "memory": "32Mi" }, "limits": { "memory": "128Mi" },
                },
            }],
        });
        spread_over_nodes(group, replicas, None, pod)
    }

    /// Fails unless the program of this term has written.
    pub fn is_written(&self, active: &Active) -> Result<()> {
        let written = self.processes()?.iter().any(|it| it.token == active.token && it.times.len() > 1);
        ensure!(written, "no program of term {} has written", active.token);
        Ok(())
    }

    /// Waits until it has.
    pub async fn written(&self, active: &Active) -> Result<()> {
        let what = "the program of the active pod to write";
        eventually(what, TOLD, async || self.is_written(active)).await
    }

    /// The terms in which programs ran. Fails if two ran at the same moment. A pod of `stood_still` was stopped with
    /// all that is in it; when it goes on, a program whose time is over may write until its agent has killed it.
    pub fn terms(&self, stood_still: &BTreeSet<String>) -> Result<Terms> {
        Terms::of(self.processes()?, stood_still)
    }

    /// Where the programs write, on every node.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes the records of the processes that have not written since a moment.
    pub fn forget(&self, before: Duration) -> Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if Self::read(&path)?.times.last().is_some_and(|last| *last < before) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Removes it.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.folder).context("removing the journal")
    }

    /// What each process has written.
    pub fn processes(&self) -> Result<Vec<Process>> {
        fs::read_dir(&self.folder)?.map(|entry| Self::read(&entry?.path())).collect()
    }

    fn read(path: &Path) -> Result<Process> {
        let name = path.file_name().and_then(|name| name.to_str()).context("a file name")?;
        Process::read(name, &fs::read_to_string(path)?)
    }
}

/// The right that the agents of a scenario's pods need.
pub async fn allow_reads(s: &Scenario) -> Result<()> {
    let bindings: Api<RoleBinding> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
    let binding = serde_json::from_value(json!({
        "metadata": { "name": "agents" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "leadergroup-agent" },
        "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": s.namespace }],
    }))?;
    bindings.create(&PostParams::default(), &binding).await.context("the right to read the LeaderGroup")?;
    Ok(())
}
