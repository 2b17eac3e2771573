//! The README's quick start: its commands are run as they are printed.

use anyhow::{Result, ensure};
use leadergroup_e2e::cluster::Cluster;

use crate::document::{HERE, Shell, blocks, section};

const README: &str = include_str!("../../../README.md");

/// The groups of commands in the section *Install*, without the first, which builds the image.
fn commands() -> Result<Vec<String>> {
    let blocks = blocks(section(README, "Install")?);
    ensure!(
        blocks.first().is_some_and(|block| block.starts_with("podman build")),
        "the first one builds the image"
    );
    Ok(blocks.into_iter().skip(1).collect())
}

/// Runs them. The operator's image has been loaded.
pub(crate) async fn runs_as_printed(cluster: &Cluster) -> Result<()> {
    let shell = Shell::of(cluster)?;
    let mut said = Vec::new();
    for block in commands()? {
        let mut commands = block.clone();
        for (printed, here) in HERE {
            if block.starts_with("helm install") {
                ensure!(commands.contains(printed), "the README no longer says {printed:?}");
                commands = commands.replace(printed, here);
            }
        }
        said.push(shell.run(&commands).await?);
    }
    let [_, first, second, _] = &said[..] else {
        anyhow::bail!("the README has {} groups of commands", said.len())
    };
    // The last line of the first is the answer of the active pod, which the second one deletes.
    let answer = first.trim().lines().last().unwrap_or_default();
    ensure!(answer.starts_with("hello-"), "no pod answered: {first}");
    ensure!(second.contains(&format!(r#""from":"{answer}""#)), "{answer} was not replaced: {second}");
    let left =
        shell.run("kubectl get pods --selector app=hello --output name; kubectl get namespaces").await?;
    ensure!(!left.contains("pod/") && !left.contains("leadergroup"), "not everything was removed: {left}");
    Ok(())
}
