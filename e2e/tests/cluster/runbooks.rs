//! The runbooks: their commands are run as they are printed, on a cluster that is well. Some run again while there is
//! the trouble that they are for.

use anyhow::{Context as _, Result, ensure};
use leadergroup_e2e::cluster::Cluster;

use crate::document::{Shell, blocks, section};

const RUNBOOKS: &str = include_str!("../../../docs/runbooks.md");

/// What the test cluster does not have, with the reason.
const NOT_HERE: [(&str, &str); 1] = [("kubectl -n leadergroup top pods\n", "there is no metrics server")];

/// The names that stand for others in the runbooks.
struct Names {
    group: String,
    replica: String,
    standby: String,
}

impl Names {
    /// The commands with these names in the place of `NAMESPACE`, `NAME`, `POD` and `OTHER`.
    fn put_into(&self, commands: &str) -> String {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut text = String::new();
        let mut rest = commands;
        while !rest.is_empty() {
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len()).max(1);
            let (word, after) = rest.split_at(end);
            text.push_str(match word {
                "NAMESPACE" => "default",
                "NAME" => &self.group,
                "POD" => &self.replica,
                "OTHER" => &self.standby,
                other => other,
            });
            rest = after;
        }
        text
    }
}

/// The alerts that have a section, in its order.
fn alerts() -> Vec<&'static str> {
    RUNBOOKS.lines().filter_map(|line| line.strip_prefix("## ")).collect()
}

/// Runs all of them for this group, whose operator is the release `leadergroup`, with the bundled database.
pub(crate) async fn run_as_printed(cluster: &Cluster, group: &str) -> Result<()> {
    let shell = Shell::of(cluster)?;
    let one = async |commands: &str| -> Result<String> {
        let said = shell.run(commands).await?;
        Ok(said.split_whitespace().next().with_context(|| format!("nothing: {commands}"))?.to_owned())
    };
    let name = "-o jsonpath='{.items[*].metadata.name}'";
    let names = Names {
        group: group.to_owned(),
        replica: one(&format!(
            "kubectl -n leadergroup get pods -l app.kubernetes.io/component=operator {name}"
        ))
        .await?,
        standby: one(&format!("kubectl get pods -l leadergroup.dev/role=standby {name}")).await?,
    };
    for (command, why) in NOT_HERE {
        ensure!(RUNBOOKS.contains(command), "no longer printed, although {why}: {command}");
    }
    let run = async |alert: &str| -> Result<Vec<String>> {
        let mut said = Vec::new();
        for mut block in blocks(section(RUNBOOKS, alert)?) {
            for (command, _) in NOT_HERE {
                block = block.replace(command, "");
            }
            said.push(shell.run(&names.put_into(&block)).await.context(alert.to_owned())?);
        }
        ensure!(!said.is_empty(), "{alert} has no commands");
        Ok(said)
    };

    for alert in alerts() {
        let said = run(alert).await?.concat();
        let word = match alert {
            "LeaderGroupOperatorAway" | "LeaderGroupReplicaWithoutLockStore" => names.replica.as_str(),
            "LeaderGroupLockStoreAway" => "database system is ready to accept connections",
            "LeaderGroupWithoutActive" | "LeaderGroupActiveFailing" => "Redundant",
            "LeaderGroupTwoActive" => &names.standby,
            "LeaderGroupWithoutStandby" => "active",
            "LeaderGroupFailsOften" => "FirstHolder",
            "LeaderGroupNotRouted" => "label",
            // On a cluster that is well, these find nothing.
            _ => "",
        };
        ensure!(said.contains(word), "{alert}: no {word:?} in: {said}");
    }
    explains(&run("LeaderGroupWithoutActive").await?.concat())?;

    // The database is away: the log has the lines that the runbooks search for.
    let database = "kubectl -n leadergroup scale statefulset/leadergroup-postgresql --replicas";
    let reachable = "kubectl wait --timeout=2m --for=condition=LockStoreReachable";
    shell.run(&format!("{database}=0")).await?;
    shell.run(&format!("{reachable}=False leadergroup/{group}")).await?;
    let cause =
        shell.run(&names.put_into(&blocks(section(RUNBOOKS, "LeaderGroupLockStoreAway")?)[0])).await?;
    ensure!(cause.contains("lock's database"), "the cause is not found: {cause}");
    let trouble = run("LeaderGroupLockTrouble").await?.concat();
    ensure!(trouble.contains(r#""level":"WARN""#), "no warning is found: {trouble}");
    shell.run(&format!("{database}=1")).await?;
    shell.run(&format!("{reachable}=True leadergroup/{group}")).await?;

    // No standby: the conditions name what is missing.
    let workload = format!("deployment/{group}");
    shell.run(&format!("kubectl scale {workload} --replicas=1")).await?;
    let redundant = "kubectl wait --timeout=2m --for=condition=Redundant";
    shell.run(&format!("{redundant}=False leadergroup/{group}")).await?;
    let missing = run("LeaderGroupWithoutStandby").await?.concat();
    ensure!(missing.contains("pod"), "nothing is said to be missing: {missing}");
    shell.run(&format!("kubectl scale {workload} --replicas=3")).await?;
    shell.run(&format!("{redundant}=True leadergroup/{group}")).await?;
    Ok(())
}

/// The operator's own explanation is among what was printed.
fn explains(said: &str) -> Result<()> {
    for word in ["lock:", "declared:", "VERDICT", "next:"] {
        ensure!(said.contains(word), "no {word} in: {said}");
    }
    Ok(())
}
