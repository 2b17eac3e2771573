//! Random faults, two at a time, over several groups: of nodes, networks, pods, PostgreSQL, the API server and the
//! operator; cordoned nodes and requested switchovers are among them. After each pair everything is mended, and all
//! groups must be served again. The history checker then finds out whether an invariant was broken at any revision.
//!
//! `LEADERGROUP_FAULTS_SEED`, `_MINUTES` and `_GROUPS` choose the sequence, how long it runs, and the number of groups.
//! The seed is printed. The same seed gives the same sequence of faults, not the same timing.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use leadergroup_e2e::{
    cluster::Cluster,
    command::progress,
    moment::Moment,
    network,
    scenario::{STARTED, Scenario, Stage, Workload, eventually, faults_setting},
};
use tokio::time::{sleep, timeout};

use crate::ownership::node_of;

const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// The bound for all groups together, on a machine of two cores that also starts nodes again.
const SERVED_WITHIN: Duration = Duration::from_mins(3);

macro_rules! kinds {
    ($($kind:ident),+ $(,)?) => {
        /// A kind of fault. Each is undone by [`Cluster::heal`], except those that [`undo`] undoes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Kind {
            $($kind),+
        }

        const KINDS: &[Kind] = &[$($kind),+];
    };
}

kinds! {
    NodePowerOff,
    NodeCutOff,
    NodeFrozen,
    NodeFromApiServer,
    NodeFromDatabase,
    NodeFromNode,
    NodeCordoned,
    PodFrozen,
    PodPaused,
    PodKilled,
    PodDeleted,
    PodDeletedByForce,
    PostgresStopped,
    PostgresKilled,
    PostgresPaused,
    PostgresRestarted,
    ApiServerStopped,
    ApiServerKilled,
    ApiServerPaused,
    EtcdKilled,
    ReplicaKilled,
    ReplicaPaused,
    ReplicaDeleted,
    SwitchoverRequested,
}

#[allow(clippy::enum_glob_use, reason = "each is used by its name below")]
use Kind::*;

impl Kind {
    /// Whether both stop the same server: it cannot be stopped while it is paused.
    fn is_of_same_server(self, other: Self) -> bool {
        let is_of_postgres =
            |kind| matches!(kind, PostgresStopped | PostgresKilled | PostgresPaused | PostgresRestarted);
        let is_of_api_server = |kind| matches!(kind, ApiServerStopped | ApiServerKilled | ApiServerPaused);
        (is_of_postgres(self) && is_of_postgres(other)) || (is_of_api_server(self) && is_of_api_server(other))
    }
}

/// The same numbers for the same seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap_or(0) % bound.max(1)
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> Result<T> {
        let at = self.below(all.len());
        all.get(at).cloned().context("nothing to choose from")
    }
}

/// What there is to disturb, as listed before the faults: afterwards the API server may be away.
struct Targets {
    nodes: Vec<String>,
    /// The groups' pods.
    pods: Vec<Target>,
    /// The operator's replicas: UID and name.
    replicas: Vec<(String, String)>,
}

/// A pod of a group.
#[derive(Clone)]
struct Target {
    uid: String,
    name: String,
    node: String,
    group: String,
    active: bool,
}

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let seed = faults_setting("SEED")?.unwrap_or_else(|| u64::from(std::process::id()));
    let groups = faults_setting("GROUPS")?.unwrap_or(5);
    let run = Duration::from_mins(faults_setting("MINUTES")?.unwrap_or(1));
    progress(&format!("random faults: seed {seed}, {groups} groups, {} minutes", run.as_secs() / 60));
    // Every second group has its endpoints written by the operator.
    let workload = |group: u64| Workload {
        name: format!("g{group}"),
        replicas: 2,
        managed: group % 2 == 1,
        ..Workload::default()
    };
    Scenario::play(stage, "random-faults", workload(0), async |s| {
        s.other_promotions = 0..=usize::MAX;
        for group in 1..groups {
            s.deployments().create(&PostParams::default(), &workload(group).deployment()?).await?;
            s.services().create(&PostParams::default(), &workload(group).service()?).await?;
        }
        for group in 0..groups {
            let workload = workload(group);
            s.groups().create(&PostParams::default(), &workload.group(&workload.name)?).await?;
        }
        served(s, groups).await.context("before any fault")?;
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (start, mut rounds, mut longest) = (Moment::now(), 0, Duration::ZERO);
        while Moment::now().since(start) < run {
            rounds += 1;
            let told = round(s, &mut random, groups).await;
            longest = longest.max(told.with_context(|| format!("seed {seed}, round {rounds}"))?);
        }
        let text = format!(
            "seed {seed}: {rounds} pairs of faults over {groups} groups; served again after {:.1} s at most",
            longest.as_secs_f64()
        );
        progress(&text);
        s.note(text);
        Ok(())
    })
    .await
}

/// Two faults, for some seconds each. Returns how long it took after they were mended until all groups were served.
async fn round(s: &mut Scenario, random: &mut Random, groups: u64) -> Result<Duration> {
    let stage = Rc::clone(&s.stage);
    let cluster = stage.own()?;
    let targets = targets(s).await?;
    let first = random.pick(KINDS)?;
    let others: Vec<Kind> =
        KINDS.iter().copied().filter(|other| *other != first && !first.is_of_same_server(*other)).collect();
    let mut paused = Vec::new();
    for kind in [first, random.pick(&others)?] {
        let about = begin(s, cluster, kind, &targets, random, &mut paused).await;
        progress(&format!(
            "  {kind:?}: {}",
            about.unwrap_or_else(|error| format!("not possible now: {error:#}"))
        ));
        let pause = 1_000 + random.below(9_000);
        sleep(Duration::from_millis(u64::try_from(pause)?)).await;
    }
    undo(cluster, &paused).await;
    cluster.heal(STARTED).await.context("mending everything")?;
    for node in &targets.nodes {
        eventually("the node to be uncordoned", STARTED, async || s.cordon(node, false).await).await?;
    }
    let mended = Moment::now();
    served(s, groups).await?;
    let took = Moment::now().since(mended);
    s.stage.operator.ready(STARTED).await?;
    // Only now: what the API server said of a group while it was served may be from before the faults.
    s.all_recover();
    Ok(took)
}

async fn targets(s: &Scenario) -> Result<Targets> {
    let id = |pod: &Pod| Some((pod.metadata.uid.clone()?, pod.metadata.name.clone()?));
    let role = s.workload.role_label;
    let active = |pod: &Pod| {
        pod.metadata.labels.as_ref().and_then(|all| all.get(role)).is_some_and(|role| role == "active")
    };
    let pods = s.pods().list(&ListParams::default()).await?.items;
    let pods = pods.iter().filter_map(|pod| {
        let (uid, name) = id(pod)?;
        let group = pod.metadata.labels.as_ref()?.get("app")?.clone();
        Some(Target { uid, name, node: node_of(pod)?, group, active: active(pod) })
    });
    Ok(Targets {
        nodes: s.stage.own()?.nodes().iter().map(|node| node.name.clone()).collect(),
        pods: pods.collect(),
        replicas: s.stage.operator.replicas().await?.iter().filter_map(id).collect(),
    })
}

/// Causes a fault. Returns what it is about.
async fn begin(
    s: &mut Scenario,
    cluster: &Cluster,
    kind: Kind,
    targets: &Targets,
    random: &mut Random,
    paused: &mut Vec<String>,
) -> Result<String> {
    let node = random.pick(&targets.nodes)?;
    let other =
        random.pick(&targets.nodes.iter().filter(|one| **one != node).cloned().collect::<Vec<_>>())?;
    // Mostly an active pod.
    let actives: Vec<_> = targets.pods.iter().filter(|pod| pod.active).cloned().collect();
    let among = if random.below(4) > 0 { &actives } else { &targets.pods };
    let Target { uid, name: pod, group, .. } = random.pick(among)?;
    let (replica_uid, replica) = random.pick(&targets.replicas)?;
    let those = |concerned: &dyn Fn(&Target) -> bool| {
        targets.pods.iter().filter(|pod| concerned(pod)).map(|pod| pod.uid.clone()).collect()
    };
    let on = |nodes: &[&String]| those(&|pod| nodes.contains(&&pod.node));
    let failing: Vec<String> = match kind {
        NodePowerOff | NodeCutOff | NodeFrozen | NodeFromApiServer | NodeFromDatabase | NodeCordoned => {
            on(&[&node])
        }
        NodeFromNode => on(&[&node, &other]),
        // By the time of the request another pod may be active.
        SwitchoverRequested => those(&|pod| pod.group == group),
        PodFrozen | PodPaused | PodKilled | PodDeleted | PodDeletedByForce => vec![uid.clone()],
        _ => Vec::new(),
    };
    s.fails(failing);
    let (server, database) = (cluster.api_server(), cluster.database());
    let delete = DeleteParams::default();
    match kind {
        NodePowerOff => drop(cluster.power_off(&node).await?),
        NodeCutOff => drop(cluster.cut_off(&node).await?),
        NodeFrozen => drop(cluster.freeze_node(&node).await?),
        NodeFromApiServer => cluster.cut_path(&node, network::CONTROL).await?,
        NodeFromDatabase => cluster.cut_path(&node, network::DATABASE).await?,
        NodeFromNode => cluster.cut_path(&node, &other).await?,
        NodeCordoned => in_time(s.cordon(&node, true)).await?,
        PodFrozen => drop(cluster.freeze_pod(&uid).await?),
        PodPaused => {
            paused.push(uid.clone());
            cluster.pause(&uid)?;
        }
        PodKilled => drop(cluster.kill_pod(&uid)?),
        PodDeleted => delete_pod(&s.pods(), &pod, delete).await?,
        PodDeletedByForce => delete_pod(&s.pods(), &pod, delete.grace_period(0)).await?,
        PostgresStopped => database.stop().await?,
        PostgresKilled => database.kill().await?,
        PostgresPaused => database.pause().await?,
        PostgresRestarted => database.restart().await?,
        ApiServerStopped => server.stop().await?,
        ApiServerKilled => server.kill().await?,
        ApiServerPaused => server.pause().await?,
        EtcdKilled => server.kill_etcd().await?,
        ReplicaKilled => drop(cluster.kill_pod(&replica_uid)?),
        ReplicaPaused => {
            paused.push(replica_uid);
            cluster.pause(paused.last().context("it was just added")?)?;
        }
        ReplicaDeleted => delete_pod(&s.stage.operator.pods(), &replica, delete).await?,
        SwitchoverRequested => {
            in_time(s.request_switchover(&group, &random.below(usize::MAX).to_string(), None)).await?;
        }
    }
    Ok(match kind {
        NodeFromNode => format!("{node} and {other}"),
        NodePowerOff | NodeCutOff | NodeFrozen | NodeFromApiServer | NodeFromDatabase | NodeCordoned => node,
        SwitchoverRequested => group,
        PodFrozen | PodPaused | PodKilled | PodDeleted | PodDeletedByForce => pod,
        ReplicaKilled | ReplicaPaused | ReplicaDeleted => replica,
        _ => String::new(),
    })
}

async fn delete_pod(pods: &Api<Pod>, name: &str, options: DeleteParams) -> Result<()> {
    in_time(async { pods.delete(name, &options).await.map(drop).map_err(Into::into) }).await
}

/// The other fault may have stopped the API server, which then does not answer.
async fn in_time(call: impl Future<Output = Result<()>>) -> Result<()> {
    timeout(ANSWERED_WITHIN, call).await.context("the API server does not answer")?
}

/// Resumes stopped processes. What did not run, or no longer exists, needs nothing.
async fn undo(cluster: &Cluster, paused: &[String]) {
    for uid in paused {
        if let Err(error) = cluster.resume(uid) {
            tracing::debug!("{error:#}");
        }
    }
    if let Err(error) = cluster.api_server().resume().await {
        tracing::debug!("{error:#}");
    }
    if let Err(error) = cluster.database().resume() {
        tracing::debug!("{error:#}");
    }
}

/// Waits until every group is Ready with one active pod, which its status names.
async fn served(s: &Scenario, groups: u64) -> Result<()> {
    eventually("every group to be served", SERVED_WITHIN, async || {
        let mut actives: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let labelled = ListParams::default().labels(&format!("{}=active", s.workload.role_label));
        for pod in s.pods().list(&labelled).await?.items {
            let app = pod.metadata.labels.and_then(|mut all| all.remove("app")).unwrap_or_default();
            actives.entry(app).or_default().extend(pod.metadata.uid);
        }
        let all = s.groups().list(&ListParams::default()).await?.items;
        ensure!(all.len() == usize::try_from(groups)?, "there are {} groups", all.len());
        for group in all {
            let name = group.metadata.name.unwrap_or_default();
            let status = group.status.unwrap_or_default();
            let ready =
                status.conditions.iter().find(|one| one.type_ == "Ready").context("no condition Ready")?;
            ensure!(ready.status == "True", "{name} is not Ready ({}): {}", ready.reason, ready.message);
            let named: Vec<String> = status.active.into_iter().map(|active| active.uid).collect();
            ensure!(
                actives.get(&name) == Some(&named),
                "{name} names {named:?}; labelled: {:?}",
                actives.get(&name)
            );
        }
        Ok(())
    })
    .await
}
