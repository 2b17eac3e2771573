//! The README's quick start: its commands are run as they are printed.

use std::{ffi::OsString, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use leadergroup_e2e::{cluster::Cluster, command::output};
use tokio::process::Command;

const LIMIT: Duration = Duration::from_mins(3);
const README: &str = include_str!("../../../README.md");

/// What differs on the test cluster: the image is loaded instead of pushed to a registry, and the database's image has
/// the server that is installed on this machine.
const HERE: [(&str, &str); 2] = [
    ("--set image.repository=registry.example.com/leadergroup", "--set postgresql.image.tag=15"),
    ("/leadergroup --namespace leadergroup", "/leadergroup --namespace leadergroup --timeout 2m"),
];

/// The groups of commands in the section *Install*, without the first, which builds the image.
fn blocks() -> Result<Vec<&'static str>> {
    let (_, section) = README.split_once("\n## Install\n").context("the README has no section Install")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let fenced = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<_> = fenced.collect();
    ensure!(
        blocks.first().is_some_and(|block| block.starts_with("podman build")),
        "the first one builds the image"
    );
    Ok(blocks.into_iter().skip(1).collect())
}

/// Runs them. The operator's image has been loaded.
pub(crate) async fn runs_as_printed(cluster: &Cluster) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
    let tools = cluster.program("helm")?.parent().context("the programs' folder")?.to_owned();
    let mut path: OsString = tools.into();
    path.push(":/usr/sbin:/usr/bin:/sbin:/bin");
    let shell = async |commands: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", commands]).current_dir(root);
        bash.env("PATH", &path).env("KUBECONFIG", cluster.kubeconfig());
        output(bash, LIMIT).await.with_context(|| format!("the README's commands:\n{commands}"))
    };
    let mut said = Vec::new();
    for block in blocks()? {
        let mut commands = block.to_owned();
        for (printed, here) in HERE {
            if block.starts_with("helm install") {
                ensure!(commands.contains(printed), "the README no longer says {printed:?}");
                commands = commands.replace(printed, here);
            }
        }
        said.push(shell(&commands).await?);
    }
    let [_, first, second, _] = &said[..] else {
        anyhow::bail!("the README has {} groups of commands", said.len())
    };
    // The last line of the first is the answer of the active pod, which the second one deletes.
    let answer = first.trim().lines().last().unwrap_or_default();
    ensure!(answer.starts_with("hello-"), "no pod answered: {first}");
    ensure!(second.contains(&format!(r#""from":"{answer}""#)), "{answer} was not replaced: {second}");
    let left = shell("kubectl get pods --selector app=hello --output name; kubectl get namespaces").await?;
    ensure!(!left.contains("pod/") && !left.contains("leadergroup"), "not everything was removed: {left}");
    Ok(())
}
