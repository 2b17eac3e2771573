//! Causing a fault, and undoing it. A fault that does not take place is an error.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use leadergroup_e2e::{
    clock::WallClock,
    history::TermCollector,
    moment::Moment,
    network::{CONTROL, DATABASE},
    random::Random,
    random_faults::{Kind, Plan, Targets},
    scenario::{STARTED, Scenario, eventually},
};
use serde_json::json;
use tokio::time::timeout;

const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// How much the copy lags behind to which the database fails over. Heartbeats alone commit once a second.
const LAG: Duration = Duration::from_secs(3);
/// How far the database's clock is set, in seconds.
const CLOCK_STEPS: [i64; 4] = [-3_600, -30, 30, 3_600];

/// Causes the faults of a run, and remembers what must be undone.
pub(super) struct Injector {
    clock: WallClock,
    upgrades: u32,
    /// The last switchover's request.
    request: String,
}

impl Injector {
    /// Gives the database a clock of its own.
    pub(super) async fn new(s: &Scenario) -> Result<Self> {
        let clock = s.stage.own()?.database().restart_with_clock().await?;
        Ok(Self { clock, upgrades: 0, request: String::new() })
    }

    /// Causes a fault. Returns when it took place: for a request, when it was sent.
    pub(super) async fn begin(&mut self, s: &Scenario, plan: &Plan, random: &mut Random) -> Result<Moment> {
        let cluster = s.stage.own()?;
        let node = || plan.nodes.first().context("a node").map(String::as_str);
        let other = || plan.nodes.get(1).context("another node").map(String::as_str);
        let pod = || plan.pod.as_ref().context("a pod");
        let replica = || plan.replica.as_ref().context("a replica");
        let (server, database) = (cluster.api_server(), cluster.database());
        let delete = DeleteParams::default();
        let mut at = Moment::now();
        match plan.kind {
            Kind::NodePowerOff => at = cluster.power_off(node()?).await?.into(),
            Kind::NodeCutOff => at = cluster.cut_off(node()?).await?.into(),
            Kind::NodeFrozen => at = cluster.freeze_node(node()?).await?.into(),
            Kind::NodeFromApiServer => cluster.cut_path(node()?, CONTROL).await?,
            Kind::NodeToApiServer => cluster.cut_one_way(node()?, CONTROL, None).await?,
            Kind::ApiServerToNode => cluster.cut_one_way(CONTROL, node()?, None).await?,
            Kind::NodeFromDatabase => cluster.cut_path(node()?, DATABASE).await?,
            Kind::NodeToDatabase => cluster.cut_one_way(node()?, DATABASE, None).await?,
            Kind::DatabaseToNode => cluster.cut_one_way(DATABASE, node()?, None).await?,
            Kind::NodeFromNode => cluster.cut_path(node()?, other()?).await?,
            Kind::NodeToNode => cluster.cut_one_way(node()?, other()?, None).await?,
            Kind::NodeCordoned => in_time(s.cordon(node()?, true)).await?,
            Kind::ProxyPaused => cluster.pause_proxy(node()?).await?,
            Kind::PodFrozen => at = cluster.freeze_pod(&pod()?.uid).await?.into(),
            Kind::PodPaused => {
                cluster.pause(&pod()?.uid)?;
                // Not earlier: the first of its processes were stopped before the last ones.
                at = Moment::now();
            }
            Kind::PodKilled => drop(cluster.kill_pod(&pod()?.uid)?),
            Kind::PodDeleted => delete_pod(&s.pods(), &pod()?.name, delete).await?,
            Kind::PodDeletedByForce => delete_pod(&s.pods(), &pod()?.name, delete.grace_period(0)).await?,
            Kind::DatabaseStopped => database.stop().await?,
            Kind::DatabaseKilled => database.kill().await?,
            Kind::DatabasePaused => database.pause().await?,
            Kind::DatabaseRestarted => database.restart().await?,
            Kind::DatabaseFailedOver => fail_over(s).await?,
            Kind::DatabaseClockStepped => self.step_clock(s, random).await?,
            Kind::ApiServerStopped => server.stop().await?,
            Kind::ApiServerKilled => server.kill().await?,
            Kind::ApiServerPaused => server.pause().await?,
            Kind::EtcdKilled => server.kill_etcd().await?,
            Kind::ReplicaKilled => drop(cluster.kill_pod(&replica()?.uid)?),
            Kind::ReplicaPaused => drop(cluster.pause(&replica()?.uid)?),
            Kind::ReplicaDeleted => delete_pod(&s.stage.operator.pods(), &replica()?.name, delete).await?,
            Kind::OperatorUpgraded => self.upgrade(s).await?,
            Kind::SwitchoverRequested => {
                self.request = random.below(usize::MAX).to_string();
                in_time(s.request_switchover(&pod()?.group, &self.request, None)).await?;
            }
        }
        Ok(at)
    }

    async fn step_clock(&self, s: &Scenario, random: &mut Random) -> Result<()> {
        let offset = random.pick(&CLOCK_STEPS).context("no step")?;
        s.stage.recorder.as_ref().context("nothing records")?.clock_is_set();
        self.clock.set(offset)?;
        let database = s.stage.own()?.database();
        eventually("the database's clock to be set", ANSWERED_WITHIN, async || {
            let off = database.clock_offset().await?;
            ensure!((off - offset).abs() < 20, "it is off by {off} s, not {offset} s");
            Ok(())
        })
        .await
    }

    /// Upgrades the operator, which replaces its replicas one after the other, and does not wait for it.
    async fn upgrade(&mut self, s: &Scenario) -> Result<()> {
        self.upgrades += 1;
        let mut values = s.stage.values.clone().context("the operator was installed by others")?;
        values["podAnnotations"] = json!({ "upgrade": self.upgrades.to_string() });
        s.stage.operator.apply(&values, false).await
    }

    /// Waits for what takes place only when everything works again: an upgrade replaces the replicas, and the status
    /// names a request that was dealt with.
    pub(super) async fn took_place(&self, s: &Scenario, plan: &Plan, targets: &Targets) -> Result<()> {
        match (plan.kind, &plan.pod) {
            (Kind::OperatorUpgraded, _) => {
                eventually("the upgraded replicas", STARTED, async || {
                    let now = s.stage.operator.replicas().await?;
                    let names: Vec<_> = now.into_iter().filter_map(|pod| pod.metadata.name).collect();
                    let old = targets.replicas.iter().filter(|old| names.contains(&old.name)).count();
                    ensure!(old == 0 && !names.is_empty(), "{old} of {names:?} are from before the upgrade");
                    Ok(())
                })
                .await
            }
            (Kind::SwitchoverRequested, Some(pod)) => {
                eventually("the status to name the request", STARTED, async || {
                    let last = s.groups().get(&pod.group).await?.status.unwrap_or_default().switchover;
                    let is_named = last.as_ref().is_some_and(|last| last.request == self.request);
                    ensure!(is_named, "{} has {last:?}, the request is {}", pod.group, self.request);
                    Ok(())
                })
                .await
            }
            _ => Ok(()),
        }
    }

    /// Undoes everything, and waits until the cluster is whole again.
    pub(super) async fn undo(&self, s: &Scenario) -> Result<()> {
        let cluster = s.stage.own()?;
        self.clock.set(0)?;
        cluster.heal(STARTED).await.context("mending everything")?;
        eventually("the database's clock to be right", ANSWERED_WITHIN, async || {
            let off = cluster.database().clock_offset().await?;
            ensure!(off.abs() <= 1, "it is off by {off} s");
            Ok(())
        })
        .await?;
        s.stage.recorder.as_ref().context("nothing records")?.clock_is_right();
        for node in cluster.nodes() {
            eventually("the node to be uncordoned", STARTED, async || s.cordon(&node.name, false).await)
                .await?;
        }
        Ok(())
    }
}

/// The terms of the lost primary are kept: pods may have been promoted under them.
async fn fail_over(s: &Scenario) -> Result<()> {
    let lost = s.stage.own()?.database().fail_over(LAG).await?;
    let terms = TermCollector::start(&lost.url()).terms().await.context("reading what was lost")?;
    s.stage.recorder.as_ref().context("nothing records")?.add_terms(terms);
    lost.remove().await
}

async fn delete_pod(pods: &Api<Pod>, name: &str, options: DeleteParams) -> Result<()> {
    in_time(async { pods.delete(name, &options).await.map(drop).map_err(Into::into) }).await
}

/// A bound for requests to the API server.
async fn in_time(call: impl Future<Output = Result<()>>) -> Result<()> {
    timeout(ANSWERED_WITHIN, call).await.context("the API server does not answer")?
}
