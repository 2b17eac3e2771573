//! Diagnostic data of a failed scenario: groups, pods, events, the operator's log and the lock's rows, written to
//! files.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};

use super::{Scenario, stage::target_folder};

const LOG_LINES: i64 = 2000;

impl Scenario {
    /// The directory for this scenario's dumps.
    pub(super) fn dump_folder(&self) -> Result<PathBuf> {
        Ok(target_folder()?.join("e2e-dump").join(&self.name))
    }

    /// Writes the diagnostic data and returns the directory. Errors are written in place of missing data.
    pub(super) async fn diagnose(&self) -> Result<PathBuf> {
        let folder = self.dump_folder()?;
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let namespace = self.namespace.as_str();
        let looks: [(&str, &[&str]); 5] = [
            ("groups.yaml", &["get", "leadergroups", "-A", "-o", "yaml"]),
            ("pods.txt", &["get", "pods", "-A", "-o", "wide", "--show-labels"]),
            ("pods.yaml", &["get", "pods", "-n", namespace, "-o", "yaml"]),
            ("events.txt", &["get", "events", "-A", "--sort-by=.metadata.creationTimestamp"]),
            ("nodes.txt", &["describe", "nodes"]),
        ];
        for (file, args) in looks {
            let text = self.stage.run_kubectl(args).await;
            fs::write(folder.join(file), text.unwrap_or_else(|error| format!("{error:#}\n")))?;
        }
        let logs = self.stage.operator.logs(LOG_LINES).await;
        fs::write(folder.join("operator.log"), logs.unwrap_or_else(|error| format!("{error:#}\n")))?;
        if let Some(cluster) = self.stage.provider.faults() {
            for table in ["session", "lock", "term"] {
                let query = format!("select * from leadergroup.{table}");
                let rows = cluster.database().sql("leadergroup", &query).await;
                fs::write(
                    folder.join(format!("{table}.txt")),
                    rows.unwrap_or_else(|error| format!("{error:#}\n")),
                )?;
            }
        }
        if let Ok(history) = self.history().await {
            history.dump(&folder.join("history.jsonl"))?;
        }
        Ok(folder)
    }
}
