//! The tutorial: all of its commands are run as they are printed, one group after the other.

use anyhow::{Context as _, Result, ensure};
use leadergroup_e2e::cluster::Cluster;

use crate::document::{HERE, Shell, blocks, section};

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");

/// Its sections with commands, and what the output of each has, beside what its own waiting ensures.
const SECTIONS: [(&str, &[&str]); 7] = [
    ("Install the operator", &["Phase:          Succeeded", "leadergroup-postgresql-0", "Running"]),
    ("Three pods, one active", &["active", "standby", "/3"]),
    ("A switchover", &[r#""result":"Done""#]),
    ("The active pod is deleted", &[r#""reason":"PodDeleted""#]),
    ("The active pod hangs", &[r#""reason":""#, "standby"]),
    ("What an alert would say", &["leadergroup_eligible_pods", "leadergroup_active_works"]),
    ("Remove everything", &["release \"leadergroup\" uninstalled", "deleted"]),
];

/// Runs them. The operator's image has been loaded.
pub(crate) async fn runs_as_printed(cluster: &Cluster) -> Result<()> {
    let shell = Shell::of(cluster)?;
    let printed = blocks(TUTORIAL).len();
    let (mut run, mut answers) = (0, Vec::new());
    for (heading, wanted) in SECTIONS {
        let mut said = String::new();
        for mut block in blocks(section(TUTORIAL, heading)?) {
            for (printed, here) in HERE {
                if block.starts_with("helm install") {
                    ensure!(block.contains(printed), "the tutorial no longer says {printed:?}");
                    block = block.replacen(printed, here, 1);
                }
            }
            said += &shell.run(&block).await.context(heading)?;
            run += 1;
        }
        for word in wanted {
            ensure!(said.contains(word), "{heading}: no {word:?} in: {said}");
        }
        if section(TUTORIAL, heading)?.contains("wget -qO- http://hello") {
            let answer = said.lines().rfind(|line| line.starts_with("hello-") && !line.contains(' '));
            answers.push(answer.with_context(|| format!("{heading}: no pod's name in: {said}"))?.to_owned());
        }
    }
    ensure!(run == printed, "{run} of {printed} groups of commands were run");
    // Who answers after the first promotion, the switchover, the deletion and the hang: a different pod each time.
    ensure!(answers.len() == 4, "{answers:?}");
    ensure!(answers.windows(2).all(|pair| pair[0] != pair[1]), "the role did not move: {answers:?}");
    let left =
        shell.run("kubectl get pods --selector app=hello --output name; kubectl get namespaces,crds").await?;
    ensure!(!left.contains("pod/") && !left.contains("leadergroup"), "not everything was removed: {left}");
    Ok(())
}
