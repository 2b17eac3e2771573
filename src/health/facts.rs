//! The kubelet's report: the parts of a `Pod` object that decisions may use.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};

use super::probe::{self, ProbeRefusal, ResolvedProbe};
use crate::api::{Boot, LeaderGroupSpec, Reason, STAMP_ANNOTATION, Stamp, terminated_boot};

/// The facts from one version of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID. A later pod of the same name has another UID.
    pub uid: String,
    /// The version that the facts were read from.
    pub resource_version: String,
    /// When it was created. Breaks ties between candidates; never compared with our own clock.
    pub created: Option<Timestamp>,
    /// The node it runs on, once it is scheduled.
    pub node: Option<String>,
    /// Its address, if it has one that may be probed.
    pub ip: Option<IpAddr>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Its phase.
    pub phase: PodPhase,
    /// Whether it is about to be evicted, preempted or garbage-collected.
    pub disruption_target: bool,
    /// Whether it is ready, and the source of that report.
    pub readiness: Readiness,
    /// Why its main container does not run, if it ended or waits to be restarted.
    pub container_problem: Option<ContainerProblem>,
    /// How often its main container was restarted; none before its first start.
    pub restarts: Option<Restarts>,
    /// The starts of agents that have ended, as the messages of the main container's ends name them.
    pub ended_agents: Vec<Boot>,
    /// The role label's value.
    pub role: Option<String>,
    /// The stamp of the last role written; none if there is none or it cannot be read.
    pub stamp: Option<Stamp>,
    /// The probe to run; none if only the kubelet's report is available.
    pub probe: Result<Option<ResolvedProbe>, ProbeRefusal>,
}

/// How often a container was restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// Its name.
    pub container: String,
    /// How often, as the kubelet counts.
    pub count: i32,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Accepted; not all of its containers have been started.
    Pending,
    /// Bound to a node, its containers started.
    Running,
    /// All containers ended successfully and will not be restarted.
    Succeeded,
    /// All containers ended, at least one with a failure. Also after evictions under pressure and missed deadlines.
    Failed,
    /// Unknown to the API server.
    Unknown,
}

/// Whether a pod is ready, and the source of that report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// No report yet.
    Unknown,
    /// The kubelet reports ready.
    Ready,
    /// The kubelet reports not ready.
    NotReady,
    /// The control plane reports not ready because it has not heard from the node; the kubelet's last report was
    /// ready.
    ///
    /// After an outage of the API server this happens to healthy pods on healthy nodes.
    NodeUnheard,
}

/// Why a container does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerProblem {
    /// Its name.
    pub container: String,
    /// Kubernetes' reason: `OOMKilled`, `Error`, `CrashLoopBackOff`.
    pub reason: String,
    /// The exit code of the last run, if any.
    pub exit_code: Option<i32>,
}

impl PodFacts {
    /// Extracts the facts of a pod of the group with this spec.
    pub fn from_pod(pod: &Pod, spec: &LeaderGroupSpec) -> Self {
        let meta = &pod.metadata;
        let unknown = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&unknown);
        let main = probe::main_container(pod, spec).ok().flatten().map(|container| container.name.as_str());
        let main_status = main.and_then(|name| {
            status.container_statuses.iter().flatten().find(|container| container.name == name)
        });
        let (ip, probe) = match probe::own_address(pod) {
            Ok(ip) => (ip, probe::resolve(pod, spec)),
            Err(forbidden) => (None, Err(forbidden)),
        };
        Self {
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            ip,
            deleting: meta.deletion_timestamp.is_some(),
            phase: phase(status),
            disruption_target: condition(status, "DisruptionTarget").is_some_and(|c| c.status == "True"),
            readiness: readiness(status),
            container_problem: main_status.and_then(problem),
            restarts: main_status.map(|container| Restarts {
                container: container.name.clone(),
                count: container.restart_count,
            }),
            ended_agents: main_status.map(ended_agents).unwrap_or_default(),
            role: meta.labels.as_ref().and_then(|labels| labels.get(&spec.routing.role_label)).cloned(),
            stamp: meta
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(STAMP_ANNOTATION))
                .and_then(|text| text.parse().ok()),
            probe,
        }
    }

    /// Whether it has ended for good.
    pub fn finished(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Why the pod has ended for good or is about to, if that is so.
    pub fn ended(&self) -> Option<Reason> {
        if self.deleting {
            Some(Reason::PodDeleted)
        } else if self.finished() {
            Some(Reason::PodFinished)
        } else if self.disruption_target {
            Some(Reason::DisruptionTarget)
        } else {
            None
        }
    }

    /// Why the pod cannot stay active, if that is so. Of several reasons the first one is told, in the order in which
    /// the verdict considers them.
    pub fn against(&self) -> Option<Reason> {
        if let Some(ended) = self.ended() {
            Some(ended)
        } else if self.container_problem.is_some() {
            Some(Reason::ContainerTerminated)
        } else {
            matches!(self.readiness, Readiness::NotReady | Readiness::NodeUnheard)
                .then_some(Reason::PodNotReady)
        }
    }

    /// Why the probe that was asked for is not run.
    pub fn probe_refusal(&self) -> Option<ProbeRefusal> {
        match &self.probe {
            Err(refusal) => Some(refusal.clone()),
            Ok(Some(_)) if self.ip.is_none() && self.readiness == Readiness::Ready => {
                Some(ProbeRefusal::NoAddress)
            }
            Ok(_) => None,
        }
    }

    /// The probe that can be run now, and its address.
    pub fn target(&self) -> Option<(IpAddr, &ResolvedProbe)> {
        self.ip.zip(self.probe.as_ref().ok()?.as_ref())
    }
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn phase(status: &PodStatus) -> PodPhase {
    match status.phase.as_deref() {
        Some("Pending") => PodPhase::Pending,
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        _ => PodPhase::Unknown,
    }
}

fn readiness(status: &PodStatus) -> Readiness {
    let Some(ready) = condition(status, "Ready") else { return Readiness::Unknown };
    match ready.status.as_str() {
        "True" => Readiness::Ready,
        // The kubelet always sets a reason. The node controller only sets Ready to False and leaves the rest
        // unchanged.
        "False" => {
            let containers_ready =
                condition(status, "ContainersReady").is_some_and(|condition| condition.status == "True");
            let no_reason = ready.reason.as_deref().unwrap_or_default().is_empty();
            if no_reason && containers_ready { Readiness::NodeUnheard } else { Readiness::NotReady }
        }
        _ => Readiness::Unknown,
    }
}

/// The kubelet reports that a container is terminated when all of its processes have ended. A container that was
/// restarted shows the end of its former run. Without the message that the agent has left, neither proves which start
/// of the agent has ended. The messages of other containers do not count, because they could name any start.
fn ended_agents(container: &ContainerStatus) -> Vec<Boot> {
    let ends = [&container.state, &container.last_state];
    let ends = ends.into_iter().filter_map(|state| state.as_ref()?.terminated.as_ref());
    ends.filter_map(|ended| terminated_boot(ended.message.as_deref()?)).collect()
}

/// The problem of a container that ended or waits to be restarted. Waiting for the first start is no problem.
fn problem(container: &ContainerStatus) -> Option<ContainerProblem> {
    let state = container.state.as_ref()?;
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let (reason, exit_code) = if let Some(ended) = &state.terminated {
        (ended.reason.clone(), Some(ended.exit_code))
    } else if let Some(waiting) = &state.waiting
        && (last.is_some() || waiting.reason.as_deref() == Some("CrashLoopBackOff"))
    {
        // `OOMKilled` is more informative than the `CrashLoopBackOff` that follows it.
        (
            last.and_then(|last| last.reason.clone()).or(waiting.reason.clone()),
            last.map(|last| last.exit_code),
        )
    } else {
        return None;
    };
    let reason = reason.unwrap_or_else(|| "Unknown".to_owned());
    Some(ContainerProblem { container: container.name.clone(), reason, exit_code })
}
