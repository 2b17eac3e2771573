//! One group: what its status, its Services, its workloads and what stands between the operator and its pods say.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
    networking::v1::NetworkPolicy,
};
use kube::ResourceExt;

use super::{
    finding::{Finding, Level, Remedy},
    installation::Operator,
    remedies::{REPORTED, after_loss, remedy_of, remedy_of_complaint},
    services::{missing_ports, problems, shared},
    workloads::Workload,
};
use crate::{
    api::{ConditionType, LabelSelectorOperator, LabelSelectorRequirement, LeaderGroup, PodSelector},
    plugin::{
        cluster::Part,
        explain::operators_word,
        failure::Failure,
        holder,
        pods::{self, PodLine},
        services,
        state::{complaint, condition, failed, is_seen, is_up_to_date},
    },
};

/// The objects of a namespace that groups have to do with.
pub(super) struct Namespace {
    pub(super) pods: Part<Vec<Pod>>,
    pub(super) services: Part<Vec<Service>>,
    pub(super) slices: Part<Vec<EndpointSlice>>,
    /// Those that could be read.
    pub(super) workloads: Vec<Workload>,
    /// Why some could not be.
    pub(super) unread_workloads: Vec<Failure>,
    pub(super) policies: Part<Vec<NetworkPolicy>>,
    /// The names of its groups; none if they could not be read.
    pub(super) groups: BTreeSet<String>,
}

/// Containers that take over the connections of their pod.
const SIDECARS: [&str; 2] = ["istio-proxy", "linkerd-proxy"];

/// All findings about a group.
pub(super) fn findings(group: &LeaderGroup, namespace: &Namespace, operator: &Operator) -> Vec<Finding> {
    let about = format!("{}/{}", group.namespace().unwrap_or_default(), group.name_any());
    let mut check = Check { about, found: Vec::new() };
    if group.metadata.deletion_timestamp.is_some() {
        check.deletion(group, operator);
        return check.found;
    }
    let own = |pod: &&Pod| group.spec.selector.matches(pod.labels());
    let mine: Vec<Pod> = namespace.pods.iter().flatten().filter(own).cloned().collect();
    let pods = pods::lines(group, &mine);
    let gone = namespace.pods.as_ref().ok().and_then(|_| holder::gone(group, &mine));
    if let Some(pod) = &gone {
        check.add(Level::Wrong, holder::gone_words(pod), after_loss(operator));
    }
    if let Some((text, remedy)) = holder::several(group, &pods) {
        check.add(Level::Wrong, text, remedy);
    }
    let own = |workload: &&Workload| workload.is_of(group);
    let workloads: Vec<&Workload> = namespace.workloads.iter().filter(own).collect();
    check.conditions(group, &workloads);
    if let (Ok(services), Ok(slices)) = (&namespace.services, &namespace.slices) {
        let lines = services::lines(group, &mine, services, slices);
        let mut found = problems(group, &lines, &pods, gone.is_some());
        found.extend(shared(group, services, namespace.groups.len()));
        found.extend(missing_ports(&lines, services, &mine));
        for (level, text, remedy) in found {
            check.add(level, text, remedy);
        }
    }
    for workload in workloads {
        for (text, remedy) in workload.problems(group) {
            check.add(Level::Wrong, text, remedy);
        }
    }
    if is_seen(group) && gone.is_none() {
        check.obstacles(&pods, &mine, namespace.policies.iter().flatten(), operator);
    }
    if check.found.is_empty() {
        check.found.push(Finding::fine(check.about, "nothing is wrong"));
    }
    check.found
}

struct Check {
    about: String,
    found: Vec<Finding>,
}

impl Check {
    fn add(&mut self, level: Level, text: impl Into<String>, remedy: impl Into<Remedy>) {
        self.found.push(Finding::new(level, self.about.clone(), text, remedy));
    }

    /// A group that is being deleted: only its finalizer matters.
    fn deletion(&mut self, group: &LeaderGroup, operator: &Operator) {
        let by_hand = format!(
            "`kubectl -n {} patch leadergroup {} --type merge --patch '{{\"metadata\":{{\"finalizers\":null}}}}'`",
            group.namespace().unwrap_or_default(),
            group.name_any()
        );
        match operator {
            Operator::Runs(place) => {
                let remedy = format!("if it stays, the operator's log says why: {}", place.log());
                self.add(Level::Hint, "it is being deleted", remedy);
            }
            Operator::Absent => {
                let text = "it is being deleted, and no operator runs that removes its finalizer";
                let remedy = format!("let the operator run; if it is gone for good: {by_hand}");
                self.add(Level::Wrong, text, remedy);
            }
            Operator::Unknown => {
                let remedy =
                    format!("if it stays, check that the operator runs; if it is gone for good: {by_hand}");
                self.add(Level::Hint, "it is being deleted", remedy);
            }
        }
    }

    /// What the operator reports.
    fn conditions(&mut self, group: &LeaderGroup, workloads: &[&Workload]) {
        let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
        if !is_seen(group) {
            let remedy =
                "check that the operator runs and watches this namespace (watchNamespaces in the chart)";
            self.add(Level::Wrong, "no operator has reported about it", remedy);
            return;
        }
        if !is_up_to_date(group) {
            let remedy = "if this persists, check the operator's log";
            self.add(Level::Hint, "the operator has not seen the last change of its spec", remedy);
        }
        for kind in REPORTED {
            if let Some(problem) = failed(group, *kind)
                && !self.found.iter().any(|finding| finding.text.contains(&problem.message))
            {
                let text = format!("{kind} is False: {}", problem.message);
                self.add(Level::Wrong, text, remedy_of(*kind, group, workloads));
            }
        }
        if let Some(complaint) = complaint(group) {
            self.add(Level::Wrong, complaint.message.clone(), remedy_of_complaint(&complaint.reason));
        }
        let tcp = condition(group, ConditionType::Probed).filter(|probed| probed.reason == "TcpOnly");
        if let Some(tcp) = tcp {
            let remedy = "give the pods a readinessProbe with httpGet or grpc, or set health.probe";
            self.add(Level::Hint, tcp.message.clone(), remedy);
        }
        if group.spec.paused {
            let remedy = format!("`kubectl leadergroup resume -n {namespace} {name}`");
            self.add(Level::Hint, "it is paused: nothing fails over", remedy);
        }
    }

    /// What may keep the operator's probes from pods that are Ready, if it does not call them eligible.
    fn obstacles<'a>(
        &mut self,
        lines: &[PodLine],
        pods: &[Pod],
        policies: impl Iterator<Item = &'a NetworkPolicy>,
        operator: &Operator,
    ) {
        let doubtful = |line: &&PodLine| line.ready && line.eligible != Some(true);
        let doubtful: Vec<&str> = lines.iter().filter(doubtful).map(|line| line.pod.as_str()).collect();
        if doubtful.is_empty() {
            return;
        }
        let mine: Vec<&Pod> = pods.iter().filter(|pod| doubtful.contains(&pod.name_any().as_str())).collect();
        let names = doubtful.join(", ");
        let restricting: Vec<String> = policies
            .filter(|policy| is_of_ingress(policy) && mine.iter().any(|pod| applies(policy, pod)))
            .map(ResourceExt::name_any)
            .collect();
        let containers = mine.iter().flat_map(|pod| pod.spec.iter().flat_map(|spec| &spec.containers));
        let sidecars = mine
            .iter()
            .flat_map(|pod| pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()));
        let mesh = containers.chain(sidecars).find(|container| SIDECARS.contains(&container.name.as_str()));
        if !restricting.is_empty() {
            let text = format!(
                "{names}: Ready, but perhaps not eligible, and these NetworkPolicies restrict who may connect: {}",
                restricting.join(", ")
            );
            self.add(Level::Hint, text, "allow the operator's namespace to connect to the probed port");
        }
        if let Some(mesh) = mesh {
            let text = format!(
                "{names}: Ready, but perhaps not eligible, and {} takes over the connections: a mesh that requires mutual \
                 TLS refuses the operator's probes",
                mesh.name
            );
            self.add(Level::Hint, text, "set health.probe to a port that the mesh does not intercept");
        }
        if restricting.is_empty() && mesh.is_none() {
            let text = format!("{names}: Ready according to the kubelet, but perhaps not eligible");
            let place = if let Operator::Runs(place) = operator { Some(place) } else { None };
            let remedy = format!("{} says which probes they answer", operators_word(place, &self.about));
            self.add(Level::Hint, text, remedy);
        }
    }
}

fn is_of_ingress(policy: &NetworkPolicy) -> bool {
    let types = policy.spec.as_ref().and_then(|spec| spec.policy_types.as_ref());
    types.is_none_or(|types| types.is_empty() || types.iter().any(|one| one == "Ingress"))
}

/// Whether a policy selects a pod.
fn applies(policy: &NetworkPolicy, pod: &Pod) -> bool {
    let Some(selector) = policy.spec.as_ref().and_then(|spec| spec.pod_selector.clone()) else { return true };
    let requirement = |one: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement| {
        let operator = match one.operator.as_str() {
            "In" => LabelSelectorOperator::In,
            "NotIn" => LabelSelectorOperator::NotIn,
            "Exists" => LabelSelectorOperator::Exists,
            _ => LabelSelectorOperator::DoesNotExist,
        };
        LabelSelectorRequirement { key: one.key, operator, values: one.values.unwrap_or_default() }
    };
    let selector = PodSelector {
        match_labels: selector.match_labels.unwrap_or_default(),
        match_expressions: selector.match_expressions.into_iter().flatten().map(requirement).collect(),
    };
    selector.matches(pod.labels())
}

#[cfg(test)]
mod tests;
