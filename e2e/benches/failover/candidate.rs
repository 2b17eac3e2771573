//! What is compared: LeaderGroup in its forms, and what a user would pick instead. Each has a namespace with a
//! Deployment and a Service.

use std::{rc::Rc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Pod, ServiceAccount},
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::{HoldConnection, ROLE_LABEL};
use leadergroup_e2e::{
    client::Client,
    moment::Moment,
    scenario::{Scenario, Stage, Workload, eventually, is_ready},
};
use serde_json::json;

use crate::{
    observed::Observed,
    program::{DATABASE, PORT, SERVE},
};

/// The images of the pods: the benchmark's own executable, and client-go's elector.
pub(crate) const PROGRAM: &str = "docker.io/leadergroup/bench-failover:1";
pub(crate) const ELECTOR: &str = "docker.io/leadergroup/bench-elector:1";
/// The label that the rivals' Services select.
pub(crate) const RIVALS_LABEL: &str = "example.com/role";
/// Time for pods to start and for a lock to expire, on a busy machine.
const SETTLED: Duration = Duration::from_mins(3);
const APP: &str = "app";
/// How long clients keep their connections: longer than any round.
const KEPT: Duration = Duration::from_hours(1);

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// LeaderGroup. If its clients keep their connections, a pod that was active is deleted, so that they end.
    Ours { managed: bool, silence_timeout: &'static str, interval: &'static str, kept: bool },
    /// A Deployment with one replica, which is replaced.
    Kubernetes,
    /// Leader election with client-go, with arguments.
    ClientGo(&'static [&'static str]),
    /// Each pod contends for the lock of the baseline protocol.
    Baseline,
}

/// A candidate to set up: the name in the table, the namespace, and who decides.
pub(crate) const CANDIDATES: [(&str, &str, Kind); 9] = [
    (
        "managed endpoints",
        "managed",
        Kind::Ours { managed: true, silence_timeout: "5s", interval: "1s", kept: false },
    ),
    (
        "managed, silence 1 s",
        "managed-1s",
        Kind::Ours { managed: true, silence_timeout: "1s", interval: "200ms", kept: false },
    ),
    (
        "kept connections",
        "kept",
        Kind::Ours { managed: true, silence_timeout: "5s", interval: "1s", kept: true },
    ),
    (
        "by selector",
        "selector",
        Kind::Ours { managed: false, silence_timeout: "5s", interval: "1s", kept: false },
    ),
    (
        "by selector, silence 1 s",
        "selector-1s",
        Kind::Ours { managed: false, silence_timeout: "1s", interval: "200ms", kept: false },
    ),
    ("Kubernetes alone", "kubernetes", Kind::Kubernetes),
    ("client-go", "client-go", Kind::ClientGo(&[])),
    (
        "client-go, 5 s",
        "client-go-5s",
        Kind::ClientGo(&["--lease-duration=5s", "--renew-deadline=3s", "--retry-period=1s"]),
    ),
    ("baseline", "baseline", Kind::Baseline),
];

/// A candidate on the cluster.
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) scenario: Scenario,
    pub(crate) observed: Observed,
}

/// The pod that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serving {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) node: String,
}

impl Candidate {
    /// Creates its namespace and objects, and waits until one pod serves.
    pub(crate) async fn set_up(
        stage: &Rc<Stage>,
        (name, namespace, kind): (&'static str, &str, Kind),
    ) -> Result<Self> {
        let namespace = format!("bench-{namespace}");
        let mut workload = Workload {
            name: APP.into(),
            replicas: if kind == Kind::Kubernetes { 1 } else { 3 },
            role_label: RIVALS_LABEL,
            ..Workload::default()
        };
        if let Kind::Ours { managed, silence_timeout, interval, kept } = kind {
            workload = Workload {
                managed,
                silence_timeout,
                interval,
                role_label: ROLE_LABEL,
                deletes_demoted: kept,
                ..workload
            };
        }
        workload.deployment = Some(Box::new(deployment(stage, kind, &workload)?));
        let create = PostParams::default();
        let object = serde_json::from_value(json!({ "metadata": { "name": namespace } }))?;
        Api::<Namespace>::all(stage.kube.clone()).create(&create, &object).await?;
        let role_label = workload.role_label;
        let scenario = Scenario::existing(stage, name, &namespace, workload);
        let candidate =
            Self { name, kind, observed: Observed::start(&stage.kube, &namespace, role_label), scenario };
        candidate.create().await.with_context(|| format!("setting up {name}"))?;
        candidate.settled().await?;
        Ok(candidate)
    }

    async fn create(&self) -> Result<()> {
        let (scenario, create) = (&self.scenario, PostParams::default());
        let kube = || scenario.stage.kube.clone();
        let mut service = scenario.workload.service()?;
        match self.kind {
            Kind::Ours { .. } => {
                let mut group = scenario.workload.group(APP)?;
                // The pods keep connections open, unlike those of the scenarios.
                group.spec.health.hold_connection = HoldConnection::default();
                scenario.groups().create(&create, &group).await?;
                let budget: PodDisruptionBudget = serde_json::from_value(json!({
                    "metadata": { "name": APP },
                    "spec": {
                        "maxUnavailable": 0,
                        "selector": { "matchLabels": { "app": APP, ROLE_LABEL: "active" } },
                    },
                }))?;
                Api::namespaced(kube(), &scenario.namespace).create(&create, &budget).await?;
            }
            Kind::Kubernetes => {
                if let Some(selector) = service.spec.as_mut().and_then(|spec| spec.selector.as_mut()) {
                    selector.remove(RIVALS_LABEL);
                }
            }
            Kind::ClientGo(_) | Kind::Baseline => {
                let namespace = &scenario.namespace;
                let account: ServiceAccount = serde_json::from_value(json!({ "metadata": { "name": APP } }))?;
                let role: Role = serde_json::from_value(json!({
                    "metadata": { "name": APP },
                    "rules": [
                        { "apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"] },
                        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"] },
                    ],
                }))?;
                let binding: RoleBinding = serde_json::from_value(json!({
                    "metadata": { "name": APP },
                    "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": APP },
                    "subjects": [{ "kind": "ServiceAccount", "name": APP }],
                }))?;
                Api::namespaced(kube(), namespace).create(&create, &account).await?;
                Api::namespaced(kube(), namespace).create(&create, &role).await?;
                Api::namespaced(kube(), namespace).create(&create, &binding).await?;
            }
        }
        scenario.deployments().create(&create, &scenario.workload.deployment()?).await?;
        scenario.services().create(&create, &service).await?;
        Ok(())
    }

    /// Starts a client on a node.
    pub(crate) async fn call_from(&self, node: &str) -> Result<Client> {
        match self.kind {
            Kind::Ours { kept: true, .. } => self.scenario.call_keeping(node, KEPT).await,
            _ => self.scenario.call_from(node).await,
        }
    }

    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Ours { .. })
    }

    /// Waits until all pods are ready, none is being deleted, and one of them is the Service's only endpoint.
    pub(crate) async fn settled(&self) -> Result<Serving> {
        if self.is_ours() {
            self.scenario.settled(SETTLED).await.with_context(|| self.name.to_owned())?;
        }
        let settled = eventually("one pod to serve", SETTLED, async || {
            let pods = self.scenario.pods().list(&ListParams::default()).await?.items;
            let wanted = usize::try_from(self.scenario.workload.replicas)?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            ensure!((pods.len(), ready) == (wanted, wanted), "{ready} of {} pods are ready", pods.len());
            self.serving(&pods)
        });
        settled.await.with_context(|| self.name.to_owned())
    }

    /// Lets a group of ours make no changes, or lets it make them again.
    pub(crate) async fn pause(&self, paused: bool) -> Result<()> {
        if self.is_ours() {
            let patch = Patch::Merge(json!({ "spec": { "paused": paused } }));
            self.scenario.groups().patch(APP, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Moves the active role to a pod on a node. False if that is not possible.
    pub(crate) async fn move_to(&self, node: &str) -> Result<bool> {
        let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = self.scenario.pods().list(&there).await?.items;
        let Some(pod) = pods.first().filter(|_| self.is_ours()) else { return Ok(false) };
        let request = Moment::now().to_string();
        self.scenario.request_switchover(APP, &request, Some(&pod.name_any())).await?;
        eventually("the switchover", SETTLED, async || {
            let serving = self.settled().await?;
            ensure!(serving.node == node, "{} serves", serving.pod);
            Ok(())
        })
        .await?;
        Ok(true)
    }

    fn serving(&self, pods: &[Pod]) -> Result<Serving> {
        let endpoints = self.observed.endpoints.now();
        let serving = pods.iter().find(|pod| endpoints.len() == 1 && endpoints.contains(&pod.name_any()));
        let serving = serving.with_context(|| format!("the endpoints are {endpoints:?}"))?;
        let node = serving.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("no node")?;
        Ok(Serving { pod: serving.name_any(), uid: serving.uid().context("no UID")?, node })
    }
}

/// The scenarios' Deployment, with another container. All pods have the same readiness probe. Those of Kubernetes alone
/// have a liveness probe with its defaults; for the others the lock takes its place.
fn deployment(stage: &Stage, kind: Kind, workload: &Workload) -> Result<Deployment> {
    let env_of = |name: &str, field: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": format!("metadata.{field}") } } });
    let mut env = vec![
        env_of("POD_NAME", "name"),
        env_of("POD_NAMESPACE", "namespace"),
        json!({ "name": "APP", "value": APP }),
    ];
    let (mut image, mut args) = (PROGRAM, vec![SERVE]);
    let probe = || json!({ "httpGet": { "path": "/healthz", "port": "http" } });
    let mut liveness = None;
    match kind {
        Kind::Ours { .. } => {}
        Kind::Kubernetes => liveness = Some(probe()),
        Kind::ClientGo(flags) => (image, args) = (ELECTOR, flags.to_vec()),
        Kind::Baseline => {
            env.push(json!({ "name": DATABASE, "value": stage.own()?.database().admin_url() }));
        }
    }
    let mut readiness = probe();
    readiness["periodSeconds"] = 1.into();
    let container = json!({
        "name": "program", "image": image, "imagePullPolicy": "IfNotPresent", "args": args, "env": env,
        "ports": [{ "name": "http", "containerPort": PORT }],
        "readinessProbe": readiness,
        "livenessProbe": liveness,
        "resources": { "requests": { "cpu": "5m", "memory": "16Mi" } },
    });
    let mut deployment = workload.deployment()?;
    let spec = deployment.spec.as_mut().context("the scenarios' Deployment has a spec")?;
    let pod = spec.template.spec.as_mut().context("the scenarios' Deployment has pods")?;
    pod.containers = vec![serde_json::from_value(container)?];
    if matches!(kind, Kind::ClientGo(_) | Kind::Baseline) {
        pod.service_account_name = Some(APP.to_owned());
        pod.automount_service_account_token = Some(true);
    }
    if kind == Kind::Kubernetes {
        spec.strategy = Some(serde_json::from_value(json!({ "type": "Recreate" }))?);
    }
    Ok(deployment)
}
