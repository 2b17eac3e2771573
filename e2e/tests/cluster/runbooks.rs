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
    for (command, why) in NOT_HERE {
        ensure!(RUNBOOKS.contains(command), "no longer printed, although {why}: {command}");
    }
    let shell = Shell::of(cluster)?;
    let one = async |commands: &str| -> Result<String> {
        let said = shell.run(commands).await?;
        Ok(said.split_whitespace().next().with_context(|| format!("nothing: {commands}"))?.to_owned())
    };
    let name = "-o jsonpath='{.items[*].metadata.name}'";
    let operator = "kubectl -n leadergroup get pods -l app.kubernetes.io/component=operator";
    let names = Names {
        group: group.to_owned(),
        replica: one(&format!("{operator} {name}")).await?,
        standby: one(&format!("kubectl get pods -l leadergroup.dev/role=standby {name}")).await?,
    };
    let reader = Reader { shell, names };
    reader.when_all_is_well().await.context("on a cluster that is well")?;
    reader.while_the_database_is_away().await.context("while the database is away")?;
    reader.while_there_is_no_standby().await.context("while there is no standby")
}

/// Somebody who types what the runbooks say.
struct Reader {
    shell: Shell,
    names: Names,
}

impl Reader {
    /// What the commands of an alert print, for each group of commands.
    async fn types(&self, alert: &str) -> Result<Vec<String>> {
        let mut said = Vec::new();
        for mut block in blocks(section(RUNBOOKS, alert)?) {
            for (command, _) in NOT_HERE {
                block = block.replace(command, "");
            }
            said.push(self.shell.run(&self.names.put_into(&block)).await.context(alert.to_owned())?);
        }
        ensure!(!said.is_empty(), "{alert} has no commands");
        Ok(said)
    }

    /// Waits until a condition of the group has this status.
    async fn sees(&self, condition: &str, status: &str) -> Result<()> {
        let group = &self.names.group;
        let wait =
            format!("kubectl wait --timeout=2m --for=condition={condition}={status} leadergroup/{group}");
        self.shell.run(&wait).await.map(drop)
    }

    async fn when_all_is_well(&self) -> Result<()> {
        for alert in alerts() {
            let said = self.types(alert).await?.concat();
            let words: &[&str] = match alert {
                "LeaderGroupOperatorAway" | "LeaderGroupReplicaWithoutLockStore" => &[&self.names.replica],
                "LeaderGroupLockStoreAway" => &["database system is ready to accept connections"],
                // The second group of commands is the operator's own explanation.
                "LeaderGroupWithoutActive" => &["Redundant", "lock:", "declared:", "VERDICT", "next:"],
                "LeaderGroupActiveFailing" => &["Redundant"],
                "LeaderGroupTwoActive" => &[&self.names.standby],
                "LeaderGroupWithoutStandby" => &["active"],
                "LeaderGroupFailsOften" => &["FirstHolder"],
                "LeaderGroupNotRouted" => &["label"],
                // On a cluster that is well, these find nothing.
                _ => &[],
            };
            for word in words {
                ensure!(said.contains(word), "{alert}: no {word:?} in: {said}");
            }
        }
        Ok(())
    }

    /// The log has the lines that the runbooks search for.
    async fn while_the_database_is_away(&self) -> Result<()> {
        let database = "kubectl -n leadergroup scale statefulset/leadergroup-postgresql --replicas";
        self.shell.run(&format!("{database}=0")).await?;
        self.sees("LockStoreReachable", "False").await?;
        // Its second group of commands is for the database's pod, which is gone.
        let cause = blocks(section(RUNBOOKS, "LeaderGroupLockStoreAway")?).swap_remove(0);
        let cause = self.shell.run(&self.names.put_into(&cause)).await?;
        ensure!(cause.contains("lock's database"), "the cause is not found: {cause}");
        let trouble = self.types("LeaderGroupLockTrouble").await?.concat();
        ensure!(trouble.contains(r#""level":"ERROR""#), "no error is found: {trouble}");
        self.shell.run(&format!("{database}=1")).await?;
        self.sees("LockStoreReachable", "True").await
    }

    /// The condition names what is missing.
    async fn while_there_is_no_standby(&self) -> Result<()> {
        let workload = format!("kubectl scale deployment/{} --replicas", self.names.group);
        self.shell.run(&format!("{workload}=1")).await?;
        self.sees("Redundant", "False").await?;
        let missing = self.types("LeaderGroupWithoutStandby").await?.concat();
        ensure!(missing.contains("pod"), "nothing is said to be missing: {missing}");
        self.shell.run(&format!("{workload}=3")).await?;
        self.sees("Redundant", "True").await
    }
}
