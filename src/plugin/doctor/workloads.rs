//! The workloads of a group: what their pod templates must not have.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, StatefulSet},
        core::v1::{Container, PodTemplateSpec},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::ResourceExt as _;

use crate::api::{LeaderGroup, OneProbe, ProbeSpec};

/// What is looked at of a `Deployment`, a `StatefulSet` or a `DaemonSet`.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// Kind and name.
    pub(super) name: String,
    selector: LabelSelector,
    template: PodTemplateSpec,
}

impl From<Deployment> for Workload {
    fn from(from: Deployment) -> Self {
        let name = format!("Deployment {}", from.name_any());
        let spec = from.spec.unwrap_or_default();
        Self { name, selector: spec.selector, template: spec.template }
    }
}

impl From<StatefulSet> for Workload {
    fn from(from: StatefulSet) -> Self {
        let name = format!("StatefulSet {}", from.name_any());
        let spec = from.spec.unwrap_or_default();
        Self { name, selector: spec.selector, template: spec.template }
    }
}

impl From<DaemonSet> for Workload {
    fn from(from: DaemonSet) -> Self {
        let name = format!("DaemonSet {}", from.name_any());
        let spec = from.spec.unwrap_or_default();
        Self { name, selector: spec.selector, template: spec.template }
    }
}

/// A problem of a workload, and its remedy.
pub(super) type Problem = (String, String);

impl Workload {
    fn labels(&self) -> BTreeMap<String, String> {
        self.template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default()
    }

    fn containers(&self) -> &[Container] {
        self.template.spec.as_ref().map_or(&[], |spec| &spec.containers)
    }

    /// Whether its pods belong to the group.
    pub(super) fn is_of(&self, group: &LeaderGroup) -> bool {
        group.spec.selector.matches(&self.labels())
    }

    /// How `kubectl scale` names it; none if it has no replicas.
    pub(super) fn scalable(&self) -> Option<String> {
        let (kind, name) = self.name.split_once(' ')?;
        (kind != "DaemonSet").then(|| format!("{}/{name}", kind.to_lowercase()))
    }

    /// What is wrong with it.
    pub(super) fn problems(&self, group: &LeaderGroup) -> Vec<Problem> {
        let label = &group.spec.routing.role_label;
        let name = &self.name;
        let selects = self.selector.match_labels.as_ref().is_some_and(|labels| labels.contains_key(label))
            || self.selector.match_expressions.iter().flatten().any(|one| one.key == *label);
        let mut all = Vec::new();
        if selects {
            let text = format!(
                "{name} selects its pods by {label}: it replaces every pod whose role changes, so no pod is promoted"
            );
            all.push((text, format!("create it again without {label} in its selector and its template")));
        } else if self.labels().contains_key(label) {
            let text = format!(
                "the pod template of {name} sets {label}: each new pod claims a role that nobody gave it"
            );
            all.push((text, format!("remove {label} from the labels of the pod template")));
        }
        all.extend(self.missing_ports(group));
        all
    }

    /// Probes that cannot be carried out, because they name a port or a container that is not there.
    fn missing_ports(&self, group: &LeaderGroup) -> Vec<Problem> {
        let health = &group.spec.health;
        let (name, containers) = (&self.name, self.containers());
        if group.spec.agent.is_some() {
            return Vec::new();
        }
        if let Some(wanted) = health.container.as_ref().filter(|wanted| !has_container(containers, wanted)) {
            let text = format!("health.container names the container {wanted}, which {name} does not have");
            let names =
                containers.iter().map(|container| container.name.as_str()).collect::<Vec<_>>().join(", ");
            return vec![(text, format!("write one of: {names}"))];
        }
        let (source, port) = if let Some(probe) = &health.probe {
            ("health.probe".to_owned(), port_of_group(probe))
        } else {
            let probed = containers.iter().find(|container| {
                let is_named = health.container.as_ref().is_none_or(|name| *name == container.name);
                is_named && container.readiness_probe.is_some()
            });
            (format!("the readinessProbe of {name}"), probed.and_then(port_of_container))
        };
        let Some(IntOrString::String(port)) = port else { return Vec::new() };
        let mut named = containers.iter().flat_map(|container| container.ports.iter().flatten());
        if port.parse::<u16>().is_ok() || named.any(|known| known.name.as_ref() == Some(port)) {
            return Vec::new();
        }
        let text = format!(
            "{source} asks for the port {port}, which no container of {name} has: it cannot be probed"
        );
        vec![(
            text,
            format!("name a containerPort {port} in the pod template, or write the number of the port"),
        )]
    }
}

fn has_container(containers: &[Container], name: &str) -> bool {
    containers.iter().any(|container| container.name == name)
}

fn port_of_group(probe: &ProbeSpec) -> Option<&IntOrString> {
    Some(match probe.one()? {
        OneProbe::HttpGet(http) => &http.port,
        OneProbe::TcpSocket(tcp) => &tcp.port,
        OneProbe::Grpc(grpc) => &grpc.port,
    })
}

fn port_of_container(container: &Container) -> Option<&IntOrString> {
    let probe = container.readiness_probe.as_ref()?;
    let http = probe.http_get.as_ref().map(|http| &http.port);
    http.or_else(|| probe.tcp_socket.as_ref().map(|tcp| &tcp.port))
}
