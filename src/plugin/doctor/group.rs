//! One group: what its status, its Services, its workloads and what stands between the operator and its pods say.

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
    networking::v1::NetworkPolicy,
};
use kube::ResourceExt;

use super::{
    finding::{Finding, Level},
    workloads::Workload,
};
use crate::{
    api::{ConditionType, LabelSelectorOperator, LabelSelectorRequirement, LeaderGroup, PodSelector},
    plugin::{
        cluster::Part,
        explain::operators_word,
        pods::{self, PodLine},
        services::{self, Selects, ServiceLine},
        state::{complaint, condition, failed, is_seen, is_up_to_date},
    },
};

/// The objects of a namespace that groups have to do with.
pub(super) struct Namespace {
    pub(super) pods: Part<Vec<Pod>>,
    pub(super) services: Part<Vec<Service>>,
    pub(super) slices: Part<Vec<EndpointSlice>>,
    pub(super) workloads: Part<Vec<Workload>>,
    pub(super) policies: Part<Vec<NetworkPolicy>>,
    /// How many groups it has.
    pub(super) groups: usize,
}

/// Containers that take over the connections of their pod.
const SIDECARS: [&str; 2] = ["istio-proxy", "linkerd-proxy"];

/// All findings about a group.
pub(super) fn findings(group: &LeaderGroup, namespace: &Namespace) -> Vec<Finding> {
    let about = format!("{}/{}", group.namespace().unwrap_or_default(), group.name_any());
    let mut check = Check { about, found: Vec::new() };
    check.conditions(group);
    let mine: Vec<Pod> = namespace
        .pods
        .iter()
        .flatten()
        .filter(|pod| group.spec.selector.matches(pod.labels()))
        .cloned()
        .collect();
    if let (Ok(services), Ok(slices)) = (&namespace.services, &namespace.slices) {
        check.services(group, &services::lines(group, &mine, services, slices));
        check.shared_services(group, services, namespace.groups);
    }
    for workload in namespace.workloads.iter().flatten().filter(|workload| workload.is_of(group)) {
        for (text, remedy) in workload.problems(group) {
            check.add(Level::Wrong, text, remedy);
        }
    }
    if is_seen(group) && group.metadata.deletion_timestamp.is_none() {
        check.obstacles(&pods::lines(group, &mine), &mine, namespace.policies.iter().flatten());
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
    fn add(&mut self, level: Level, text: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(Finding::new(level, self.about.clone(), text, remedy));
    }

    /// What the operator reports.
    fn conditions(&mut self, group: &LeaderGroup) {
        let (namespace, name) = (group.namespace().unwrap_or_default(), group.name_any());
        if group.metadata.deletion_timestamp.is_some() {
            let remedy = "if it stays, the operator does not run or cannot finish: see its log";
            self.add(Level::Hint, "it is being deleted", remedy);
            return;
        }
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
        for (kind, remedy) in REMEDIES {
            if let Some(problem) = failed(group, *kind)
                && !self.found.iter().any(|finding| finding.text.contains(&problem.message))
            {
                let text = format!("{kind} is False: {}", problem.message);
                self.add(Level::Wrong, text, remedy.replace("GROUP", &format!("-n {namespace} {name}")));
            }
        }
        if let Some(complaint) = complaint(group) {
            self.add(Level::Wrong, complaint.message.clone(), "");
        }
        let tcp = condition(group, ConditionType::Probed).filter(|probed| probed.reason == "TcpOnly");
        if let Some(tcp) = tcp {
            self.add(Level::Hint, tcp.message.clone(), "");
        }
        if group.spec.paused {
            let remedy = format!("`kubectl leadergroup resume -n {namespace} {name}`");
            self.add(Level::Hint, "it is paused: nothing fails over", remedy);
        }
    }

    fn services(&mut self, group: &LeaderGroup, lines: &[ServiceLine]) {
        let label = format!("{}: {}", group.spec.routing.role_label, group.spec.routing.active_value);
        for line in lines.iter().filter(|line| !line.problem.is_empty()) {
            let has_active = group.status.as_ref().is_some_and(|status| status.active.is_some());
            // Without an active pod, a Service without endpoints is as it should be.
            if has_active || !line.is_of_the_active_pod() || !line.endpoints.is_empty() {
                self.add(Level::Wrong, format!("Service {}: {}", line.service, line.problem), "");
            }
        }
        if lines.iter().any(ServiceLine::is_of_the_active_pod) || group.spec.agent.is_some() {
            return;
        }
        let forgot = lines.iter().filter(|line| line.selects == Selects::AllPods && !line.headless);
        let forgot: Vec<&str> = forgot.map(|line| line.service.as_str()).collect();
        if !forgot.is_empty() {
            let text = format!(
                "Service {} selects all pods of the group, and none selects the active one: clients reach standbys",
                forgot.join(", ")
            );
            self.add(Level::Wrong, text, format!("add {label} to the selector of the Service"));
        } else if lines.is_empty() {
            let remedy =
                format!("if clients are to reach the active pod, create one with {label} in its selector");
            self.add(Level::Hint, "no Service selects the active pod", remedy);
        }
    }

    /// A Service that selects the role alone routes to the active pods of all groups.
    fn shared_services(&mut self, group: &LeaderGroup, services: &[Service], groups: usize) {
        let label = &group.spec.routing.role_label;
        let selects_it_alone = |service: &&Service| {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| {
                selector.len() == 1 && selector.get(label) == Some(&group.spec.routing.active_value)
            })
        };
        for service in services.iter().filter(selects_it_alone).filter(|_| groups > 1) {
            let text = format!(
                "Service {} selects {label} and nothing else: it routes to the active pods of all {groups} groups of the \
                 namespace",
                service.name_any()
            );
            self.add(Level::Wrong, text, "add the labels of one group's pods to its selector");
        }
    }

    /// What may keep the operator's probes from pods that are Ready, if it does not call them eligible.
    fn obstacles<'a>(
        &mut self,
        lines: &[PodLine],
        pods: &[Pod],
        policies: impl Iterator<Item = &'a NetworkPolicy>,
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
            self.add(
                Level::Hint,
                text,
                format!("{} says which probes they answer", operators_word(&self.about)),
            );
        }
    }
}

/// What to do if a condition is False. Ready and Active follow from the others, and their messages are the same.
const REMEDIES: &[(ConditionType, &str)] = &[
    (ConditionType::Accepted, "change the spec as the message says"),
    (ConditionType::LockStoreReachable, "mend the database; the operator then goes on by itself"),
    (ConditionType::Active, "`kubectl leadergroup explain GROUP`"),
    (ConditionType::Routed, "`kubectl leadergroup explain GROUP`"),
    (ConditionType::Redundant, "`kubectl leadergroup status GROUP`"),
    (ConditionType::Probed, "docs/api.md, \"Which probe is used\""),
];

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
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::{
        doctor::finding::text,
        samples::{good_service, object, plain, pods, service, set, slice, web},
    };

    fn good() -> Namespace {
        Namespace {
            pods: Ok(pods()),
            services: Ok(vec![good_service()]),
            slices: Ok(vec![slice("web", &["web-1"])]),
            workloads: Ok(Vec::new()),
            policies: Ok(Vec::new()),
            groups: 1,
        }
    }

    fn found(group: &LeaderGroup, namespace: &Namespace) -> Vec<(Level, String, String)> {
        let all = findings(group, namespace).into_iter();
        all.map(|finding| (finding.level, finding.text, finding.remedy)).collect()
    }

    fn workload(selector: &Value, labels: &Value, port: &Value) -> Workload {
        object::<k8s_openapi::api::apps::v1::Deployment>(json!({
            "metadata": { "name": "web" },
            "spec": {
                "selector": { "matchLabels": selector },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "containers": [{
                        "name": "main", "ports": [{ "name": "http", "containerPort": 80 }],
                        "readinessProbe": { "httpGet": { "port": port } },
                    }] },
                },
            },
        }))
        .into()
    }

    #[test]
    fn nothing_is_wrong_with_a_good_group() {
        assert_eq!(found(&web(), &good()), [(Level::Fine, "nothing is wrong".to_owned(), String::new())]);
    }

    #[test]
    fn a_condition_that_is_false_is_told_once_with_its_remedy() {
        let mut group = web();
        set(&mut group, "LockStoreReachable", "False", "X", "connection refused");
        set(&mut group, "Active", "False", "X", "connection refused");
        let all = found(&group, &good());
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].1, "LockStoreReachable is False: connection refused");
        assert!(all[0].2.contains("mend the database"), "{all:?}");
        group.status = None;
        let unseen = found(&group, &good());
        assert_eq!(
            (unseen.len(), unseen[0].1.as_str()),
            (1, "no operator has reported about it"),
            "{unseen:?}"
        );
    }

    #[test]
    fn a_service_that_forgot_the_role_is_wrong_unless_another_one_has_it() {
        let forgot = service("all", &json!({ "app": "web" }));
        let mut namespace = good();
        namespace.services = Ok(vec![good_service(), forgot.clone()]);
        assert_eq!(found(&web(), &namespace)[0].0, Level::Fine);
        namespace.services = Ok(vec![forgot.clone()]);
        let (level, told, remedy) = found(&web(), &namespace).remove(0);
        assert!(level == Level::Wrong && told.contains("Service all selects all pods"), "{told}");
        assert_eq!(remedy, "add leadergroup.dev/role: active to the selector of the Service");
        // The governing Service of a StatefulSet gives names.
        let mut headless = forgot;
        headless.spec.as_mut().expect("a spec").cluster_ip = Some("None".to_owned());
        namespace.services = Ok(vec![headless]);
        assert_eq!(found(&web(), &namespace)[0].0, Level::Fine);
        namespace.services = Ok(Vec::new());
        assert_eq!(found(&web(), &namespace)[0].0, Level::Hint);
    }

    #[test]
    fn a_service_that_selects_the_role_alone_mixes_groups() {
        let mut namespace = good();
        namespace.services = Ok(vec![service("web", &json!({ "leadergroup.dev/role": "active" }))]);
        assert_eq!(found(&web(), &namespace)[0].0, Level::Fine);
        namespace.groups = 2;
        assert!(found(&web(), &namespace)[0].1.contains("all 2 groups"));
    }

    #[test]
    fn a_workload_must_not_have_the_role_label_nor_a_port_that_is_not_there() {
        let app = json!({ "app": "web" });
        let with_role = json!({ "app": "web", "leadergroup.dev/role": "active" });
        let problem = |selector: &Value, labels: &Value, port: &Value| {
            let mut namespace = good();
            namespace.workloads = Ok(vec![workload(selector, labels, port)]);
            found(&web(), &namespace).remove(0).1
        };
        assert_eq!(problem(&app, &app, &json!("http")), "nothing is wrong");
        assert_eq!(problem(&app, &app, &json!(8080)), "nothing is wrong");
        assert!(problem(&app, &app, &json!("web")).contains("asks for the port web"));
        assert!(
            problem(&app, &with_role, &json!("http")).contains("the pod template of Deployment web sets")
        );
        assert!(
            problem(&with_role, &with_role, &json!("http"))
                .contains("selects its pods by leadergroup.dev/role")
        );
        let other = json!({ "app": "other", "leadergroup.dev/role": "active" });
        assert_eq!(problem(&other, &other, &json!("web")), "nothing is wrong", "of another group");
    }

    #[test]
    fn what_may_block_probes_is_named_if_a_ready_pod_may_not_be_eligible() {
        let policy = object(json!({
            "metadata": { "name": "deny" }, "spec": { "podSelector": {}, "policyTypes": ["Ingress"] },
        }));
        let mut namespace = good();
        namespace.policies = Ok(vec![policy]);
        assert_eq!(found(&web(), &namespace)[0].0, Level::Fine, "all pods are eligible");
        let mut group = web();
        group.status.as_mut().expect("a status").eligible = 1;
        assert!(found(&group, &namespace)[0].1.contains("restrict who may connect: deny"));
        let mut meshed = pods();
        let spec = meshed[0].spec.as_mut().expect("a spec");
        spec.containers.push(object(json!({ "name": "istio-proxy" })));
        (namespace.pods, namespace.policies) = (Ok(meshed), Ok(Vec::new()));
        assert!(found(&group, &namespace)[0].1.contains("istio-proxy takes over the connections"));
        namespace.pods = Ok(pods());
        assert!(found(&group, &namespace)[0].1.contains("perhaps not eligible"));
    }

    #[test]
    fn findings_are_printed_with_their_remedies_and_counted() {
        let mut group = web();
        set(&mut group, "Redundant", "False", "NoStandby", "no other pod could take over now; add replicas");
        group.spec.paused = true;
        let shown = plain(&text(&findings(&group, &good()), None));
        let expected = "\
shop/web
  WRONG Redundant is False: no other pod could take over now; add replicas
        -> `kubectl leadergroup status -n shop web`
  hint  it is paused: nothing fails over
        -> `kubectl leadergroup resume -n shop web`

1 thing is wrong. 1 hint.
";
        assert_eq!(shown, expected, "\n{shown}");
    }
}
