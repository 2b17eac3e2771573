//! The runbooks: their commands are run as they are printed, on a cluster that is well. Some run again while there is
//! the trouble that they are for.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use leadergroup_e2e::cluster::Cluster;
use leadergroup_e2e::scenario::{OPERATOR_NAMESPACE, RELEASE, eventually};

use crate::document::{Shell, blocks, section};

const RUNBOOKS: &str = include_str!("../../../docs/runbooks.md");

/// What the test cluster does not have, with the reason.
const NOT_HERE: [(&str, &str); 1] = [("kubectl -n leadergroup top pods\n", "there is no metrics server")];

/// Time for a replica to start and to end.
const LIMIT: Duration = Duration::from_mins(2);

/// The names that stand for others in the runbooks.
#[derive(Clone)]
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
    let reader = async || Reader::of(cluster, group).await;
    reader().await?.when_all_is_well().await.context("on a cluster that is well")?;
    reader().await?.while_the_database_is_away().await.context("while the database is away")?;
    reader().await?.while_there_is_no_standby().await.context("while there is no standby")?;
    reader().await?.while_there_is_no_pod().await.context("while there is no pod")?;
    reader().await?.while_endpoints_are_not_managed().await.context("while endpoints are not managed")?;
    reader().await?.while_a_key_is_in_use().await.context("while a key is in use")?;
    reader().await?.while_no_operator_runs().await.context("while no operator runs")
}

/// Somebody who types what the runbooks say.
pub(crate) struct Reader {
    shell: Shell,
    names: Names,
}

/// The names that the runbooks' words stand for now.
async fn names(shell: &Shell, group: &str) -> Result<Names> {
    let one = async |commands: &str| -> Result<String> {
        let said = shell.run(commands).await?;
        Ok(said.split_whitespace().next().with_context(|| format!("nothing: {commands}"))?.to_owned())
    };
    let name = "-o jsonpath='{.items[*].metadata.name}'";
    let operator = "kubectl -n leadergroup get pods -l app.kubernetes.io/component=operator";
    Ok(Names {
        group: group.to_owned(),
        replica: one(&format!("{operator} {name}")).await?,
        standby: one(&format!("kubectl get pods -l leadergroup.dev/role=standby {name}")).await?,
    })
}

impl Reader {
    /// For a group with a standby, and an operator that runs.
    pub(crate) async fn of(cluster: &Cluster, group: &str) -> Result<Self> {
        let shell = Shell::of(cluster)?;
        let names = names(&shell, group).await?;
        Ok(Self { shell, names })
    }

    /// What the commands of an alert print, for each group of commands.
    pub(crate) async fn types(&self, alert: &str) -> Result<Vec<String>> {
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
        self.waits(&format!("condition={condition}={status}")).await
    }

    /// Waits for something of the group.
    async fn waits(&self, what: &str) -> Result<()> {
        let wait = format!("kubectl wait --timeout=2m --for={what} leadergroup/{}", self.names.group);
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

    /// The operator says what it waits for.
    async fn while_there_is_no_pod(&self) -> Result<()> {
        let workload = format!("kubectl scale deployment/{} --replicas", self.names.group);
        self.shell.run(&format!("{workload}=0")).await?;
        self.waits("jsonpath='{.status.replicas}'=0").await?;
        let said = self.types("LeaderGroupWithoutActive").await?.concat();
        for word in ["NoPods", ": nothing.", "no pod is eligible"] {
            ensure!(said.contains(word), "no {word:?} in: {said}");
        }
        self.shell.run(&format!("{workload}=3")).await?;
        self.sees("Redundant", "True").await?;
        self.sees("Ready", "True").await
    }

    /// The condition says why the group's endpoints are not written.
    async fn while_endpoints_are_not_managed(&self) -> Result<()> {
        let write = async |endpoints: &str| {
            let patch = format!(r#"{{"spec":{{"routing":{{"endpoints":"{endpoints}"}}}}}}"#);
            let group = &self.names.group;
            self.shell.run(&format!("kubectl patch leadergroup {group} --type merge -p '{patch}'")).await
        };
        write("Managed").await?;
        self.sees("Routed", "False").await?;
        let said = self.types("LeaderGroupNotRouted").await?;
        ensure!(said.concat().contains("managedEndpoints.enabled"), "no remedy in: {said:?}");
        write("Selector").await?;
        self.sees("Routed", "True").await
    }

    /// The condition names the group that has the key.
    async fn while_a_key_is_in_use(&self) -> Result<()> {
        let create = |name: &str| {
            format!(
                r#"echo '{{"apiVersion":"leadergroup.dev/v1alpha1","kind":"LeaderGroup","metadata":{{"name":"{name}"}},
                "spec":{{"lock":{{"key":"one"}},"selector":{{"matchLabels":{{"app":"none"}}}}}}}}' |
                kubectl apply -f -"#
            )
        };
        let wait = "kubectl wait --timeout=2m --for=condition";
        self.shell.run(&create("first")).await?;
        self.shell.run(&format!("{wait}=Accepted=True leadergroup/first")).await?;
        self.shell.run(&create("second")).await?;
        self.shell.run(&format!("{wait}=Stalled=True leadergroup/second")).await?;
        let (shell, names) = (&self.shell, Names { group: "second".to_owned(), ..self.names.clone() });
        let block = blocks(section(RUNBOOKS, "LeaderGroupStalled")?).concat();
        let said = shell.run(&names.put_into(&block)).await?;
        ensure!(said.contains("the lock key one is in use by"), "no key in: {said}");
        shell.run("kubectl delete leadergroup first second --timeout=1m").await.map(drop)
    }

    /// The log of replicas that end says why. Nobody takes the label off a second pod.
    async fn while_no_operator_runs(&self) -> Result<()> {
        let operator = format!("kubectl -n {OPERATOR_NAMESPACE}");
        let replicas = format!("{operator} get deployment/{RELEASE} -o jsonpath='{{.spec.replicas}}'");
        let replicas = self.shell.run(&replicas).await?;
        let scale = format!("{operator} scale deployment/{RELEASE} --replicas");
        let pods = "pods -l app.kubernetes.io/component=operator";
        self.shell.run(&format!("{operator} set env deployment/{RELEASE} LEADERGROUP_TYPO=1")).await?;
        // The replicas of before would stay while the new ones do not become Ready.
        let restart = format!(
            "{scale}=0\n{operator} delete {pods} --ignore-not-found --timeout=1m\n{scale}={replicas}"
        );
        self.shell.run(&restart).await?;
        eventually("the cause in the log", LIMIT, async || {
            let said = self.types("LeaderGroupOperatorAway").await?.concat();
            // The Deployment names the variable; only the log says what is wrong with it.
            ensure!(said.contains("is no setting: take it out"), "no cause in: {said}");
            Ok(())
        })
        .await?;
        let other = &self.names.standby;
        let account = format!("--as=system:serviceaccount:{OPERATOR_NAMESPACE}:{RELEASE}");
        let label = format!("kubectl label pod {other} --overwrite leadergroup.dev/role=active {account}");
        self.shell.run(&label).await?;
        let said = self.types("LeaderGroupTwoActive").await?;
        ensure!(said[0].contains(&format!("{other}: kubectl-label")), "nobody has set it: {said:?}");
        ensure!(said[1].contains("unlabeled"), "the label stays: {said:?}");
        let mended =
            format!("{operator} set env deployment/{RELEASE} LEADERGROUP_TYPO-\n{operator} rollout status");
        self.shell.run(&format!("{mended} deployment/{RELEASE} --timeout=2m")).await?;
        let labelled = format!(
            "kubectl wait --timeout=1m --for=jsonpath='{{.metadata.labels.leadergroup\\.dev/role}}'=standby pod/{other}"
        );
        self.shell.run(&labelled).await.map(drop)
    }
}
