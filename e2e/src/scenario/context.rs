//! One scenario: a namespace with a workload, and the operations that scenarios use.

use std::{ops::RangeInclusive, rc::Rc, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod, Service},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use leadergroup::api::{LeaderGroup, RoutingSpec, SWITCHOVER_ANNOTATION, SWITCHOVER_TO_ANNOTATION};
use serde_json::json;
use tokio::time;

use super::operator::is_ready;
use super::{IMAGE, Measured, PORT, Seen, Stage, Workload, eventually, faults_last};
use crate::{
    client::{Calls, Client},
    history::{Deadline, Fault, History, Recorder},
    moment::Moment,
};

/// How long a scenario waits for another pod to take over. The history is checked for the deadline of each change,
/// which is far shorter: one that misses it is to be measured, not only noticed.
pub const TAKEOVER: Duration = Duration::from_secs(40);
/// Time for pods to start on a busy machine.
pub const STARTED: Duration = Duration::from_mins(2);
/// The kubelet may need this long to update the pods' files on a busy machine.
pub const TOLD: Duration = STARTED;
/// Time limit of a scenario. Only a scenario that hangs takes this long.
const LONGEST: Duration = Duration::from_mins(4);

/// A running scenario.
pub struct Scenario {
    /// The stage that it runs on.
    pub stage: Rc<Stage>,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its workload.
    pub workload: Workload,
    /// The number of promotions besides the measured changes of holder. Default: 1, the first promotion.
    pub other_promotions: RangeInclusive<usize>,
    /// The groups that are not Ready at the end, each with the reason. All others are. Default: none.
    pub not_ready: Vec<(&'static str, &'static str)>,
    pub(super) started: Moment,
    /// Changes up to this revision belong to an earlier namespace of the same name.
    pub(super) first_revision: i64,
    recorder: Option<Recorder>,
    /// When which pods were made to fail.
    pub(super) faults: Vec<Fault>,
    /// How soon they had to be replaced.
    pub(super) deadlines: Vec<Deadline>,
    pub(super) changes: Vec<Measured>,
    pub(super) clients: Vec<Seen>,
    /// The calls of the clients that had a network.
    pub(super) calls: Vec<Calls>,
    /// When the scenario changed the Service itself.
    pub(super) rebuilt: Vec<(Moment, Moment)>,
    pub(super) notes: Vec<String>,
}

/// The active pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// Its name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// Its node.
    pub node: String,
    /// The token of its term.
    pub token: i64,
}

impl Scenario {
    /// Runs a scenario in its own namespace: deploys the workload, runs `story`, checks the history, reports, and
    /// deletes the namespace, unless it is kept for the checks of all scenarios together. If it fails, diagnostic data
    /// is written to files first.
    pub async fn play(
        stage: &Rc<Stage>,
        name: &str,
        workload: Workload,
        story: impl AsyncFnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let mut scenario = Self::prepare(stage, name, workload).await?;
        let told = async {
            scenario.deploy().await?;
            story(&mut scenario).await?;
            scenario.rests().await?;
            scenario.check().await
        };
        let told = time::timeout(LONGEST + faults_last(), told).await;
        let told = told.unwrap_or_else(|_| Err(anyhow!("it took longer than {} s", LONGEST.as_secs())));
        stage.together.add(&scenario.faults, &scenario.deadlines);
        let namespace = scenario.namespace.as_str();
        let Err(error) = told else {
            let kept = stage.together.keep(namespace);
            return if kept { Ok(()) } else { stage.delete_namespaces(&[namespace]).await };
        };
        let mut dump = match scenario.diagnose().await {
            Ok(folder) => format!("diagnostic data is in {}", folder.display()),
            Err(error) => format!("and writing the diagnostic data failed: {error:#}"),
        };
        if let Err(error) = stage.delete_namespaces(&[namespace]).await {
            dump.push_str(&format!("; {error:#}"));
        }
        Err(error.context(dump))
    }

    /// A scenario for objects that are created elsewhere, in an existing namespace.
    pub fn existing(stage: &Rc<Stage>, name: &str, namespace: &str, workload: Workload) -> Self {
        Self {
            stage: Rc::clone(stage),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            workload,
            other_promotions: 1..=1,
            not_ready: Vec::new(),
            started: Moment::now(),
            first_revision: 0,
            recorder: None,
            faults: Vec::new(),
            deadlines: Vec::new(),
            changes: Vec::new(),
            clients: Vec::new(),
            calls: Vec::new(),
            rebuilt: Vec::new(),
            notes: Vec::new(),
        }
    }

    async fn prepare(stage: &Rc<Stage>, name: &str, workload: Workload) -> Result<Self> {
        let namespace = format!("e2e-{name}");
        let created = stage.create_namespace(&namespace).await?;
        let first_revision = created.metadata.resource_version.context("no version")?.parse()?;
        let recorder = if stage.recorder.is_some() {
            None
        } else {
            let url = stage.provider.database_url_in_cluster();
            Some(Recorder::of_api(stage.kube.clone(), &namespace, url.as_deref()).await?)
        };
        Ok(Self { first_revision, recorder, ..Self::existing(stage, name, &namespace, workload) })
    }

    async fn deploy(&self) -> Result<()> {
        if let Some(manifests) = &self.workload.manifests {
            return self.stage.apply(&self.namespace, manifests).await;
        }
        let create = PostParams::default();
        self.deployments()
            .create(&create, &self.workload.deployment()?)
            .await
            .context("creating the Deployment")?;
        self.services().create(&create, &self.workload.service()?).await.context("creating the Service")?;
        Ok(())
    }

    /// The Deployments of the namespace.
    pub fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.stage.kube.clone(), &self.namespace)
    }

    /// The Services of the namespace.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.stage.kube.clone(), &self.namespace)
    }

    /// The pods of the namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.stage.kube.clone(), &self.namespace)
    }

    /// The groups of the namespace.
    pub fn groups(&self) -> Api<LeaderGroup> {
        Api::namespaced(self.stage.kube.clone(), &self.namespace)
    }

    /// The workload's pods that are not being deleted.
    pub async fn members(&self) -> Result<Vec<Pod>> {
        let list =
            self.pods().list(&ListParams::default().labels(&format!("app={}", self.workload.name))).await?;
        Ok(list.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
    }

    /// Waits until all pods are running and Ready.
    pub async fn pods_ready(&self) -> Result<Vec<Pod>> {
        eventually("all pods to be ready", STARTED, async || {
            let pods = self.members().await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            let wanted = usize::try_from(self.workload.replicas)?;
            ensure!(ready == wanted && pods.len() == wanted, "{ready} of {} pods are ready", pods.len());
            Ok(pods)
        })
        .await
    }

    /// Creates the group with the workload's name and waits until it is settled with its first active pod.
    pub async fn elect(&self) -> Result<Active> {
        self.pods_ready().await?;
        let group = self.workload.group(&self.workload.name)?;
        self.groups().create(&PostParams::default(), &group).await.context("creating the LeaderGroup")?;
        self.settled(TAKEOVER).await
    }

    /// The group with the workload's name.
    pub async fn group(&self) -> Result<LeaderGroup> {
        Ok(self.groups().get(&self.workload.name).await?)
    }

    /// The active pod: named by the group's status, and the workload's only one with the active label. Otherwise an
    /// error.
    pub async fn active(&self) -> Result<Active> {
        let status = self.group().await?.status.unwrap_or_default();
        let active = status.active.context("the status names no active pod")?;
        let role = &self.workload.role_label;
        let active_label = format!("app={},{role}=active", self.workload.name);
        let labelled = self.pods().list(&ListParams::default().labels(&active_label)).await?;
        let uids: Vec<_> = labelled.items.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        ensure!(
            uids == [active.uid.as_str()],
            "the status names {}, labelled active are {uids:?}",
            active.uid
        );
        let node = active.node.context("the status names no node")?;
        Ok(Active { pod: active.pod, uid: active.uid, node, token: status.token })
    }

    /// Waits until the group is Ready, one pod is active and every other pod is labelled standby and eligible.
    pub async fn settled(&self, within: Duration) -> Result<Active> {
        eventually("the group to settle", within, async || {
            let active = self.active().await?;
            let group = self.group().await?;
            let generation = group.metadata.generation;
            let status = group.status.unwrap_or_default();
            let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
            let ready = ready.context("there is no condition Ready")?;
            ensure!(
                ready.status == "True",
                "Ready is {} ({}): {}",
                ready.status,
                ready.reason,
                ready.message
            );
            ensure!(Some(status.observed_generation) == generation, "the newest spec was not observed yet");
            let wanted = u32::try_from(self.workload.replicas)?;
            ensure!(
                (status.eligible, status.replicas) == (wanted, wanted),
                "{} of {} pods are eligible, {wanted} are wanted",
                status.eligible,
                status.replicas
            );
            for pod in self.members().await? {
                let role =
                    pod.metadata.labels.as_ref().and_then(|labels| labels.get(self.workload.role_label));
                let is_active = pod.metadata.uid.as_deref() == Some(active.uid.as_str());
                let wanted = if is_active { "active" } else { "standby" };
                ensure!(
                    role.map(String::as_str) == Some(wanted),
                    "{:?} is {role:?}, not {wanted}",
                    pod.metadata.name
                );
            }
            Ok(active)
        })
        .await
    }

    /// Changes the number of pods.
    pub async fn scale(&mut self, replicas: i32) -> Result<()> {
        self.workload.replicas = replicas;
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.deployments().patch(&self.workload.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Requests a switchover of a group, to this pod or to any.
    pub async fn request_switchover(&self, group: &str, request: &str, to: Option<&str>) -> Result<()> {
        let annotations = json!({ SWITCHOVER_ANNOTATION: request, SWITCHOVER_TO_ANNOTATION: to });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        self.groups().patch(group, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Cordons a node, or no longer.
    pub async fn cordon(&self, node: &str, cordoned: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.stage.kube.clone());
        let patch = Patch::Merge(json!({ "spec": { "unschedulable": cordoned.then_some(true) } }));
        nodes.patch(node, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A condition of the group: its status, reason and message.
    pub async fn condition(&self, group: &str, type_: &str) -> Result<(String, String, String)> {
        let status = self.groups().get(group).await?.status.unwrap_or_default();
        let found = status.conditions.into_iter().find(|condition| condition.type_ == type_);
        let found = found.with_context(|| format!("{group} has no condition {type_}"))?;
        Ok((found.status, found.reason, found.message))
    }

    /// The address of the Service.
    pub async fn service_address(&self) -> Result<String> {
        let service = self.services().get(&self.workload.name).await?;
        service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")
    }

    /// Starts to call the Service from a node (on an existing cluster: from a pod on any node).
    pub async fn call_from(&self, node: &str) -> Result<Client> {
        let target = self.target().await?;
        if self.stage.provider.faults().is_some() {
            self.call(node, &["call", &target])
        } else {
            let name = format!("client-{node}");
            Client::in_pod(self.stage.kube.clone(), &self.namespace, &name, IMAGE, target.parse()?).await
        }
    }

    /// The same, with connections that are kept for so long. Needs a cluster of its own.
    pub async fn call_keeping(&self, node: &str, kept: Duration) -> Result<Client> {
        let target = self.target().await?;
        self.call(node, &["call", &target, "--keep-alive-ms", &kept.as_millis().to_string()])
    }

    async fn target(&self) -> Result<String> {
        Ok(format!("{}:{PORT}", self.service_address().await?))
    }

    fn call(&self, node: &str, args: &[&str]) -> Result<Client> {
        let program = self.stage.program.to_str().context("the program's path is no text")?;
        let mut command = self.stage.own()?.command_on(node, program);
        command.args(args);
        Client::spawn(&format!("{} on {node}", self.name), command)
    }

    /// A node other than this one, to call from; on an existing cluster any node.
    pub fn another_node(&self, than: &str) -> Result<String> {
        let Some(cluster) = self.stage.provider.faults() else { return Ok("elsewhere".into()) };
        let other = cluster.nodes().iter().find(|node| node.name != than);
        Ok(other.context("the cluster has one node only")?.name.clone())
    }

    /// Sends an order to a pod's first process: `crash` or `leak`.
    pub async fn order(&self, pod: &str, order: &str) -> Result<()> {
        self.run_in(pod, &format!("echo {order} >/orders")).await
    }

    /// Runs a script in a pod. It may end the container.
    pub async fn run_in(&self, pod: &str, script: &str) -> Result<()> {
        let args = ["exec", "-n", &self.namespace, pod, "--", "/bin/sh", "-c", script];
        match self.stage.run_kubectl(&args).await {
            // It took effect so fast that the shell was killed with the container.
            Err(killed) if killed.to_string().contains("exit code 137") => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// The recorded history of this namespace.
    pub async fn history(&self) -> Result<History> {
        let recorder = self.stage.recorder.as_ref().or(self.recorder.as_ref()).context("nothing records")?;
        Ok(recorder.history().await?.of_namespaces(&[&self.namespace]))
    }

    /// The same without the lock's terms, for use while the database is unavailable.
    pub async fn objects(&self) -> Result<History> {
        let recorder = self.stage.recorder.as_ref().or(self.recorder.as_ref()).context("nothing records")?;
        Ok(recorder.objects().await?.of_namespaces(&[&self.namespace]))
    }

    /// The label and its values.
    pub fn routing(&self) -> RoutingSpec {
        RoutingSpec { role_label: self.workload.role_label.to_owned(), ..RoutingSpec::default() }
    }

    /// The current revision.
    pub async fn revision(&self) -> Result<i64> {
        let recorder = self.stage.recorder.as_ref().or(self.recorder.as_ref()).context("nothing records")?;
        recorder.revision().await
    }

    /// Ends a client and keeps its record, for the report and to be checked against the history.
    pub async fn hang_up(&mut self, client: Client) -> Result<Calls> {
        let calls = self.hang_up_cut_off(client).await?;
        self.calls.push(calls.clone());
        Ok(calls)
    }

    /// The same for a client whose own network was cut: what it sees is reported and not checked.
    pub async fn hang_up_cut_off(&mut self, client: Client) -> Result<Calls> {
        let calls = client.stop().await?;
        self.clients.push(Seen::from(&calls));
        Ok(calls)
    }

    /// Notes that the scenario has changed the Service itself since `from`, or held up Kubernetes' controllers: until
    /// now it may have had no endpoint.
    pub fn rebuilt_service(&mut self, from: Moment) {
        self.rebuilt.push((from, Moment::now()));
    }

    /// Adds a note to the report.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The changes of holder measured so far.
    pub fn changes(&self) -> &[Measured] {
        &self.changes
    }
}
