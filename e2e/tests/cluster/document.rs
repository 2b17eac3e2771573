//! Commands of a document, run as they are printed.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use leadergroup_e2e::{cluster::Cluster, command::output};
use tokio::process::Command;

const LIMIT: Duration = Duration::from_mins(3);

/// What differs on the test cluster when the operator is installed: the image is loaded instead of pushed to a
/// registry, and the database's image has the server that is installed on this machine.
pub(crate) const HERE: [(&str, &str); 2] = [
    ("--set image.repository=registry.example.com/leadergroup", "--set postgresql.image.tag=15"),
    ("/leadergroup --namespace leadergroup", "/leadergroup --namespace leadergroup --timeout 2m"),
];

/// The text of a section, without its heading.
pub(crate) fn section<'a>(document: &'a str, heading: &str) -> Result<&'a str> {
    let (_, section) = document
        .split_once(&format!("\n## {heading}\n"))
        .with_context(|| format!("there is no section {heading}"))?;
    Ok(section.split("\n## ").next().unwrap_or_default())
}

/// The groups of commands in a text, without the indentation that they have in lists.
pub(crate) fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(indent) = line.strip_suffix("```sh").filter(|indent| indent.trim().is_empty()) else {
            continue;
        };
        let inside = lines.by_ref().take_while(|line| line.trim() != "```");
        let inside: Vec<_> = inside.map(|line| line.strip_prefix(indent).unwrap_or(line)).collect();
        blocks.push(inside.join("\n") + "\n");
    }
    blocks
}

/// Runs groups of commands in the repository, with the test cluster's programs.
pub(crate) struct Shell {
    path: OsString,
    kubeconfig: PathBuf,
}

impl Shell {
    pub(crate) fn of(cluster: &Cluster) -> Result<Self> {
        let tools = cluster.program("helm")?.parent().context("the programs' folder")?.to_owned();
        let mut path: OsString = tools.into();
        path.push(":/usr/sbin:/usr/bin:/sbin:/bin");
        Ok(Self { path, kubeconfig: cluster.kubeconfig() })
    }

    /// Runs commands and returns their output. All of them must succeed, but `grep` may find nothing.
    pub(crate) async fn run(&self, commands: &str) -> Result<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
        let grep = r#"grep() { command grep "$@" || (($? == 1)); }"#;
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &format!("{grep}\n{commands}")]).current_dir(root);
        bash.env("PATH", &self.path).env("KUBECONFIG", &self.kubeconfig);
        output(bash, LIMIT).await.with_context(|| format!("the commands:\n{commands}"))
    }
}
