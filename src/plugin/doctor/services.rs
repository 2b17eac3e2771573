//! The Services of a group: where they route to, which ports they name, and what to do about it. Pure.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{Container, Pod, Service},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::ResourceExt;

use super::finding::{Level, Remedy};
use crate::{
    api::{GROUP_LABEL, LeaderGroup},
    plugin::{
        pods::{PodLine, PodRole},
        services::{Selects, ServiceLine},
    },
};

/// A finding about a Service.
pub(super) type Found = (Level, String, Remedy);

/// What is wrong with the Services of a group. `is_gone`: its active pod does not exist any more.
pub(super) fn problems(
    group: &LeaderGroup,
    lines: &[ServiceLine],
    pods: &[PodLine],
    is_gone: bool,
) -> Vec<Found> {
    let mut all = Vec::new();
    let has_active = group.status.as_ref().is_some_and(|status| status.active.is_some());
    for line in lines.iter().filter(|line| !line.problem.is_empty()) {
        // Without an active pod, a Service without endpoints is as it should be.
        if has_active && !is_gone || !line.is_of_the_active_pod() || !line.endpoints.is_empty() {
            let text = format!("Service {}: {}", line.service, line.problem);
            all.push((Level::Wrong, text, remedy(group, line, pods)));
        }
    }
    all.extend(without_role(group, lines));
    all
}

/// No Service selects the active pod.
fn without_role(group: &LeaderGroup, lines: &[ServiceLine]) -> Option<Found> {
    let label = format!("{}: {}", group.spec.routing.role_label, group.spec.routing.active_value);
    if lines.iter().any(ServiceLine::is_of_the_active_pod) || group.spec.agent.is_some() {
        return None;
    }
    let forgot = lines.iter().filter(|line| line.selects == Selects::AllPods && !line.headless);
    let forgot: Vec<&str> = forgot.map(|line| line.service.as_str()).collect();
    if !forgot.is_empty() {
        let text = format!(
            "Service {} selects all pods of the group, and none selects the active one: clients reach standbys",
            forgot.join(", ")
        );
        return Some((Level::Wrong, text, format!("add {label} to the selector of the Service").into()));
    }
    lines.is_empty().then(|| {
        let remedy =
            format!("if clients are to reach the active pod, create one with {label} in its selector");
        (Level::Hint, "no Service selects the active pod".to_owned(), remedy.into())
    })
}

/// What to do about a Service that does not route as it should.
fn remedy(group: &LeaderGroup, line: &ServiceLine, pods: &[PodLine]) -> Remedy {
    let namespace = group.namespace().unwrap_or_default();
    let service = &line.service;
    let active = group.status.as_ref().and_then(|status| status.active.as_ref()).map(|active| &active.pod);
    if !line.is_of_the_active_pod() {
        return format!("correct its selector: `kubectl -n {namespace} edit service {service}`").into();
    }
    if line.selects == Selects::Managed {
        return "the operator writes these endpoints: check that it runs, and see its log".into();
    }
    if let (Some(active), []) = (active, line.endpoints.as_slice()) {
        let is_ready = pods.iter().any(|pod| pod.pod == *active && pod.ready);
        return if is_ready {
            format!(
                "compare the labels of the pod with the selector: `kubectl -n {namespace} get pod {active} --show-labels`, \
                 `kubectl -n {namespace} get service {service} -o wide`"
            )
        } else {
            format!("see why the pod is not Ready: `kubectl -n {namespace} describe pod {active}`")
        }
        .into();
    }
    let is_other = |pod: &&PodLine| {
        pod.role == PodRole::Active && Some(&pod.pod) != active && line.endpoints.contains(&pod.pod)
    };
    let others: Vec<&str> = pods.iter().filter(is_other).map(|pod| pod.pod.as_str()).collect();
    if others.is_empty() {
        return format!(
            "see who writes its endpoints, and whether that lags: `kubectl -n {namespace} get endpointslices -l \
             kubernetes.io/service-name={service} -o yaml`"
        )
        .into();
    }
    format!(
        "check that the operator runs, which removes the active label; by hand: `kubectl -n {namespace} label pod {} {}-`",
        others.join(" "),
        group.spec.routing.role_label
    )
    .into()
}

/// Services whose label names none of these groups: the name, what is wrong, and what to do.
pub(super) fn without_group<'a>(
    services: impl Iterator<Item = &'a Service>,
    groups: &BTreeSet<String>,
) -> Vec<(String, String, String)> {
    let named = services.filter_map(|service| Some((service.name_any(), service.labels().get(GROUP_LABEL)?)));
    named
        .filter(|(_, group)| !groups.is_empty() && !groups.contains(*group))
        .map(|(service, group)| {
            let text = format!(
                "the Service has the label {GROUP_LABEL}={group}, and there is no LeaderGroup {group} in its namespace: \
                 nobody looks at it"
            );
            (service, text, "correct the label, or take it off the Service".to_owned())
        })
        .collect()
}

/// A Service that selects the role alone routes to the active pods of all groups.
pub(super) fn shared(group: &LeaderGroup, services: &[Service], groups: usize) -> Vec<Found> {
    let label = &group.spec.routing.role_label;
    let selects_it_alone = |service: &&Service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| {
            selector.len() == 1 && selector.get(label) == Some(&group.spec.routing.active_value)
        })
    };
    let mixed = services.iter().filter(selects_it_alone).filter(|_| groups > 1);
    mixed
        .map(|service| {
            let text = format!(
                "Service {} selects {label} and nothing else: it routes to the active pods of all {groups} groups of the \
                 namespace",
                service.name_any()
            );
            (Level::Wrong, text, "add the labels of one group's pods to its selector".into())
        })
        .collect()
}

/// Services of the group whose targetPort no container declares. Containers need not declare their ports: if one of
/// them declares none, nothing follows.
pub(super) fn missing_ports(lines: &[ServiceLine], services: &[Service], pods: &[Pod]) -> Vec<Found> {
    let containers: Vec<&Container> = pods.iter().flat_map(containers).collect();
    let declares = |container: &&Container| container.ports.as_ref().is_some_and(|ports| !ports.is_empty());
    if containers.is_empty() || !containers.iter().all(declares) {
        return Vec::new();
    }
    let ports = || containers.iter().flat_map(|container| container.ports.iter().flatten());
    let is_declared = |wanted: &IntOrString| match wanted {
        IntOrString::Int(number) => ports().any(|port| port.container_port == *number),
        IntOrString::String(name) => ports().any(|port| port.name.as_ref() == Some(name)),
    };
    let known: BTreeSet<String> = ports()
        .map(|port| match &port.name {
            Some(name) => format!("{} ({name})", port.container_port),
            None => port.container_port.to_string(),
        })
        .collect();
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    let is_of_group = |service: &&Service| {
        let name = service.name_any();
        let selects = |line: &ServiceLine| {
            !line.headless && !matches!(line.selects, Selects::NoRole | Selects::OtherLabels)
        };
        lines.iter().any(|line| line.service == name && selects(line))
    };
    let mut all = Vec::new();
    for service in services.iter().filter(is_of_group) {
        let spec = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        for port in spec {
            let target = port.target_port.clone().unwrap_or(IntOrString::Int(port.port));
            if is_declared(&target) {
                continue;
            }
            let shown = match target {
                IntOrString::Int(number) => number.to_string(),
                IntOrString::String(name) => name,
            };
            let text = format!(
                "Service {}: no container of the group's pods declares its targetPort {shown}",
                service.name_any()
            );
            let remedy = format!("write the targetPort that the program listens on; declared are: {known}");
            all.push((Level::Hint, text, remedy.into()));
        }
    }
    all
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| &spec.containers)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::{
        samples::{object, pods, slice, web},
        services,
    };

    fn of_port(port: &Value, declared: &Value) -> Vec<Found> {
        let service: Service = object(json!({
            "metadata": { "name": "web" },
            "spec": { "clusterIP": "10.0.0.1", "selector": { "app": "web", "leadergroup.dev/role": "active" }, "ports": [port] },
        }));
        let mut pods = pods();
        for pod in &mut pods {
            pod.spec.as_mut().expect("a spec").containers[0].ports = object(declared.clone());
        }
        let services = [service];
        let lines = services::lines(&web(), &pods, &services, &[slice("web", &["web-1"])]);
        missing_ports(&lines, &services, &pods)
    }

    #[test]
    fn a_label_that_names_no_group_is_noticed() {
        let labelled = |group: &str| -> Service {
            object(json!({ "metadata": { "name": "front", "labels": { GROUP_LABEL: group } } }))
        };
        let groups = ["web".to_owned()].into();
        let found = |service: &Service, groups| without_group([service].into_iter(), groups);
        let astray = found(&labelled("wbe"), &groups);
        assert!(astray[0].0 == "front" && astray[0].1.contains("no LeaderGroup wbe"), "{astray:?}");
        assert!(found(&labelled("web"), &groups).is_empty());
        let unread = BTreeSet::new();
        assert!(found(&labelled("wbe"), &unread).is_empty(), "they could not be read");
        let plain = object(json!({ "metadata": { "name": "front" } }));
        assert!(found(&plain, &groups).is_empty());
    }

    #[test]
    fn a_target_port_is_compared_with_the_declared_ports() {
        let declared = json!([{ "name": "http", "containerPort": 8080 }]);
        for fine in [
            json!({ "port": 8080 }),
            json!({ "port": 80, "targetPort": 8080 }),
            json!({ "port": 80, "targetPort": "http" }),
        ] {
            assert_eq!(of_port(&fine, &declared), [], "{fine}");
        }
        for (wrong, shown) in [
            (json!({ "port": 80 }), "80"),
            (json!({ "port": 80, "targetPort": 8081 }), "8081"),
            (json!({ "port": 80, "targetPort": "web" }), "web"),
        ] {
            let (level, text, remedy) = of_port(&wrong, &declared).remove(0);
            assert_eq!(level, Level::Hint);
            assert_eq!(
                text,
                format!("Service web: no container of the group's pods declares its targetPort {shown}")
            );
            assert!(remedy.as_str().ends_with("declared are: 8080 (http)"), "{remedy:?}");
            assert_eq!(of_port(&wrong, &Value::Null), [], "no port is declared");
        }
    }
}
