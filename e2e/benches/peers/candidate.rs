//! What is compared: the agent, and client-go's leader election. Each candidate has a namespace with a Deployment of
//! two pods, on two nodes, and a journal that the programs write to.

use std::{rc::Rc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::Pod,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use leadergroup_e2e::{
    images::{AGENT, EXAMPLES},
    journal::{Journal, Process, allow_reads},
    process::uptime,
    scenario::{STARTED, Scenario, Stage, Workload, eventually, is_ready, spread_over_nodes},
};
use serde_json::json;

const APP: &str = "writer";
const REPLICAS: i32 = 2;
/// A program that writes a hundred times a second has ended if it has not written for this time.
const ENDED: Duration = Duration::from_millis(300);

/// The times of client-go's leader election, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    lease: u32,
    renew: u32,
    retry: u32,
}

/// Those of Kubernetes' own components.
const DEFAULT: Times = Times { lease: 15, renew: 10, retry: 2 };
/// With the agent's default lease.
const EQUAL: Times = Times { lease: 10, renew: 7, retry: 2 };

/// Who elects the leader.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// The operator; `leadergroup-agent` with this lease runs the program.
    Agent(&'static str),
    /// The program itself.
    ClientGo(Times),
}

/// The name in the table, the namespace, and who elects.
pub(crate) const CANDIDATES: [(&str, &str, Kind); 3] = [
    ("agent, lease 10 s", "agent", Kind::Agent("10s")),
    ("client-go, lease 15 s", "client-go", Kind::ClientGo(DEFAULT)),
    ("client-go, lease 10 s", "client-go-10s", Kind::ClientGo(EQUAL)),
];

/// A candidate on the cluster.
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) journal: Journal,
    pub(crate) scenario: Scenario,
    pub(crate) kind: Kind,
}

/// The pod whose program writes.
#[derive(Clone, Debug)]
pub(crate) struct Writing {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) node: String,
    /// When its program began.
    pub(crate) begun: Duration,
}

impl Candidate {
    /// Creates its namespace and objects.
    pub(crate) async fn set_up(
        stage: &Rc<Stage>,
        (name, namespace, kind): (&'static str, &str, Kind),
    ) -> Result<Self> {
        let namespace = format!("bench-{namespace}");
        let journal = Journal::new(&namespace)?;
        let lease = if let Kind::Agent(lease) = kind { Some(lease) } else { None };
        let mut workload =
            Workload { name: APP.into(), replicas: REPLICAS, agent_lease: lease, ..Workload::default() };
        workload.deployment = Some(Box::new(deployment(stage, &journal, kind)?));
        stage.create_namespace(&namespace).await?;
        let scenario = Scenario::existing(stage, name, &namespace, workload);
        let candidate = Self { name, journal, scenario, kind };
        candidate.create().await.with_context(|| format!("setting up {name}"))?;
        Ok(candidate)
    }

    async fn create(&self) -> Result<()> {
        let (scenario, create) = (&self.scenario, PostParams::default());
        if matches!(self.kind, Kind::Agent(_)) {
            allow_reads(scenario).await?;
            scenario.groups().create(&create, &scenario.workload.group(APP)?).await?;
        } else {
            let namespace = &scenario.namespace;
            let role: Role = serde_json::from_value(json!({
                "metadata": { "name": APP },
                "rules": [{
                    "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "verbs": ["get", "create", "update"],
                }],
            }))?;
            let binding: RoleBinding = serde_json::from_value(json!({
                "metadata": { "name": APP },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": APP },
                "subjects": [{ "kind": "ServiceAccount", "name": "default" }],
            }))?;
            let kube = || scenario.stage.kube.clone();
            Api::namespaced(kube(), namespace).create(&create, &role).await?;
            Api::namespaced(kube(), namespace).create(&create, &binding).await?;
        }
        scenario.deployments().create(&create, &scenario.workload.deployment()?).await?;
        Ok(())
    }

    /// Waits until all pods are ready, none is being deleted, and one program writes. Forgets earlier ones.
    pub(crate) async fn settled(&self) -> Result<Writing> {
        if matches!(self.kind, Kind::Agent(_)) {
            self.scenario.settled(STARTED).await.with_context(|| self.name.to_owned())?;
        }
        let settled = eventually("one program to write", STARTED, async || {
            let pods = self.scenario.pods().list(&ListParams::default()).await?.items;
            let wanted = usize::try_from(REPLICAS)?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            ensure!((pods.len(), ready) == (wanted, wanted), "{ready} of {} pods are ready", pods.len());
            self.writing(&pods)
        });
        let writing = settled.await.with_context(|| self.name.to_owned())?;
        self.journal.forget(uptime()?.saturating_sub(ENDED))?;
        Ok(writing)
    }

    /// Makes the program run on this node, while pods can be scheduled on no other one.
    pub(crate) async fn move_to(&self, node: &str, writing: &Writing) -> Result<()> {
        if writing.node != node {
            self.scenario.pods().delete(&writing.pod, &DeleteParams::default()).await?;
        }
        eventually("the program to write on the node", STARTED, async || {
            let pods = self.scenario.pods().list(&ListParams::default()).await?.items;
            let now = self.writing(&pods)?.node;
            ensure!(now == node, "it writes on {now}, not on {node}");
            Ok(())
        })
        .await
        .with_context(|| self.name.to_owned())
    }

    fn writing(&self, pods: &[Pod]) -> Result<Writing> {
        let processes = self.journal.processes()?;
        let running = running(&processes)?;
        let [process] = running.as_slice() else {
            bail!("{} programs write", running.len());
        };
        let pod = pods.iter().find(|pod| pod.name_any() == process.pod);
        let pod = pod.with_context(|| format!("the pod {} is gone", process.pod))?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("no node")?;
        let begun = *process.times.first().context("it has written")?;
        Ok(Writing { pod: pod.name_any(), uid: pod.uid().context("no UID")?, node, begun })
    }
}

/// The processes that write now.
pub(crate) fn running(processes: &[Process]) -> Result<Vec<&Process>> {
    let since = uptime()?.saturating_sub(ENDED);
    Ok(processes.iter().filter(|it| it.times.last().is_some_and(|last| *last >= since)).collect())
}

fn deployment(stage: &Stage, journal: &Journal, kind: Kind) -> Result<Deployment> {
    let mut container = json!({
        "name": APP, "image": EXAMPLES, "imagePullPolicy": "Never",
        "volumeMounts": [{ "name": "journal", "mountPath": "/journal" }],
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
    });
    // The same program in all candidates.
    let mut command = vec!["leader".to_owned(), "--folder=/journal".to_owned()];
    match kind {
        Kind::Agent(_) => {
            let agent = [AGENT, "run", "--group", APP, "--"].map(str::to_owned);
            command = [&agent[..], &command, &["--leader-elect=false".to_owned()]].concat();
            container["ports"] = json!([{ "name": "http", "containerPort": 9470 }]);
            container["readinessProbe"] =
                json!({ "httpGet": { "path": "/ready", "port": "http" }, "periodSeconds": 2 });
        }
        Kind::ClientGo(Times { lease, renew, retry }) => {
            command.push(format!("--lease-duration={lease}s"));
            command.push(format!("--renew-deadline={renew}s"));
            command.push(format!("--retry-period={retry}s"));
        }
    }
    container["command"] = command.into();
    let others = json!({
        "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": APP } },
    });
    // Two nodes, so that each candidate can be moved to the node that is lost.
    let nodes: Vec<&str> = stage.own()?.nodes().iter().take(2).map(|node| node.name.as_str()).collect();
    let on_two = json!([{ "matchExpressions": [
        { "key": "kubernetes.io/hostname", "operator": "In", "values": nodes },
    ] }]);
    let pod = json!({
        "terminationGracePeriodSeconds": 5,
        "volumes": [{ "name": "journal", "hostPath": { "path": journal.folder(), "type": "Directory" } }],
        "affinity": {
            "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [others] },
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": on_two },
            },
        },
        "containers": [container],
    });
    spread_over_nodes(APP, REPLICAS, None, pod)
}
