//! The Services that have to do with a group, and where they route to.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::ResourceExt as _;
use serde::Serialize;

use super::{ink::Ink, state::is_seen};
use crate::api::{Endpoints, GROUP_LABEL, LeaderGroup, NO_ROLE};

type Labels = BTreeMap<String, String>;

/// What a Service selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Selects {
    /// The active pod, by the role label.
    Active,
    /// The active pod, by slices that the operator writes.
    Managed,
    /// The standbys.
    Standbys,
    /// All pods, whatever their role.
    AllPods,
    /// A role that no pod has.
    NoRole,
    /// The role, and labels that no pod of the group has.
    OtherLabels,
}

/// One Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceLine {
    pub(super) service: String,
    pub(super) selects: Selects,
    /// A headless Service gives its pods names; it balances nothing.
    pub(super) headless: bool,
    /// The pods, or where a slice names none, the addresses.
    pub(super) endpoints: Vec<String>,
    /// What is wrong with it; empty if nothing is.
    pub(super) problem: String,
}

impl ServiceLine {
    /// What it selects, in words.
    pub(super) fn selects_words(&self) -> &'static str {
        match self.selects {
            Selects::Active => "the active pod",
            Selects::Managed => "the active pod (managed)",
            Selects::Standbys => "the standbys",
            Selects::AllPods => "all pods",
            Selects::NoRole | Selects::OtherLabels => "nothing",
        }
    }

    /// Whether its clients are meant to reach the active pod only.
    pub(super) fn is_of_the_active_pod(&self) -> bool {
        matches!(self.selects, Selects::Active | Selects::Managed)
    }

    pub(super) fn ink(&self) -> Ink {
        if self.problem.is_empty() { Ink::Plain } else { Ink::Bad }
    }
}

/// The Services that select pods of the group, or seem to be meant to.
pub(super) fn lines(
    group: &LeaderGroup,
    pods: &[Pod],
    services: &[Service],
    slices: &[EndpointSlice],
) -> Vec<ServiceLine> {
    let mut all: Vec<ServiceLine> = services
        .iter()
        .filter_map(|service| {
            let (selects, mut problem) = selected(group, pods, service)?;
            let endpoints = endpoints_of(service, slices);
            // Before the operator has seen the group, it is not known which pod is active.
            if problem.is_empty() && is_seen(group) && matches!(selects, Selects::Active | Selects::Managed) {
                problem = misrouted(group, &endpoints);
            }
            Some(ServiceLine {
                service: service.name_any(),
                selects,
                headless: spec_of(service).1,
                endpoints,
                problem,
            })
        })
        .collect();
    all.sort_by(|a, b| a.service.cmp(&b.service));
    all
}

/// The selector, and whether the Service is headless.
fn spec_of(service: &Service) -> (Labels, bool) {
    let spec = service.spec.as_ref();
    let headless = spec.is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"));
    (spec.and_then(|spec| spec.selector.clone()).unwrap_or_default(), headless)
}

/// What a Service selects of a group, and what is wrong with that; none if it has nothing to do with it.
fn selected(group: &LeaderGroup, pods: &[Pod], service: &Service) -> Option<(Selects, String)> {
    let (routing, name) = (&group.spec.routing, group.name_any());
    let is_meant = service.labels().get(GROUP_LABEL) == Some(&name);
    if is_meant && routing.endpoints == Endpoints::Managed {
        return Some((Selects::Managed, String::new()));
    }
    let found = by_selector(group, pods, service);
    let (label, active) = (&routing.role_label, &routing.active_value);
    if !is_meant || spec_of(service).0.get(label) == Some(active) {
        return found;
    }
    let selects = found.map_or(Selects::NoRole, |(selects, _)| selects);
    let problem = format!(
        "it has the label {GROUP_LABEL}={name}, so it is meant for the active pod, and does not select {label}={active}: \
         add that to its selector, or take the label off"
    );
    Some((selects, problem))
}

fn by_selector(group: &LeaderGroup, pods: &[Pod], service: &Service) -> Option<(Selects, String)> {
    let routing = &group.spec.routing;
    let (mut selector, _) = spec_of(service);
    let managed = routing.endpoints == Endpoints::Managed;
    let role = selector.remove(&routing.role_label);
    let named = &group.spec.selector.match_labels;
    let has_all = |labels: &Labels| selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let fits = if pods.is_empty() { has_all(named) } else { pods.iter().any(|pod| has_all(pod.labels())) };
    let Some(role) = role else {
        return (fits && !selector.is_empty()).then(|| (Selects::AllPods, String::new()));
    };
    let shares = selector.iter().any(|(key, value)| named.get(key) == Some(value));
    // Without a pod it is not known which other labels the pods have.
    if !(fits || pods.is_empty() && shares) {
        let lacking: Vec<String> = selector
            .iter()
            .filter(|(key, value)| !pods.iter().any(|pod| pod.labels().get(*key) == Some(value)))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let problem =
            format!("no pod of the group has {}: correct the Service's selector", lacking.join(", "));
        return shares.then_some((Selects::OtherLabels, problem));
    }
    let label = &routing.role_label;
    Some(match role {
        role if role == routing.active_value => (Selects::Active, String::new()),
        role if role == routing.standby_value => (Selects::Standbys, String::new()),
        role if role == NO_ROLE && managed => (
            Selects::NoRole,
            format!(
                "it selects {label}={NO_ROLE}, which is for managed endpoints, but lacks the label {GROUP_LABEL}={}",
                group.name_any()
            ),
        ),
        role if role == NO_ROLE => (
            Selects::NoRole,
            format!(
                "it selects {label}={NO_ROLE}, which is for managed endpoints: write {}, or set routing.endpoints: \
                 Managed in the LeaderGroup",
                routing.active_value
            ),
        ),
        role => (
            Selects::NoRole,
            format!("it selects {label}={role}, a role that no pod has: write {}", routing.active_value),
        ),
    })
}

fn endpoints_of(service: &Service, slices: &[EndpointSlice]) -> Vec<String> {
    let name = service.name_any();
    let own = slices.iter().filter(|slice| {
        slice.labels().get("kubernetes.io/service-name").is_some_and(|service| *service == name)
    });
    let is_ready = |endpoint: &&Endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
    };
    let mut found: Vec<String> = own
        .flat_map(|slice| &slice.endpoints)
        .filter(is_ready)
        .filter_map(|endpoint| {
            let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
            pod.or_else(|| endpoint.addresses.first().cloned())
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// What is wrong with the endpoints of a Service that is to route to the active pod.
fn misrouted(group: &LeaderGroup, endpoints: &[String]) -> String {
    let active = group.status.as_ref().and_then(|status| status.active.as_ref()).map(|active| &active.pod);
    match (active, endpoints) {
        (Some(active), [only]) if only == active => String::new(),
        (Some(active), []) => format!(
            "it has no ready endpoint, although {active} is active: is that pod Ready, and does it have all labels of \
             the selector?"
        ),
        (Some(active), others) => format!("it routes to {}, and {active} is active", others.join(", ")),
        (None, []) => "it has no endpoint, because no pod is active".to_owned(),
        (None, others) => format!("it routes to {}, although no pod is active", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::samples::{good_service, pods, service, slice, web, without_active};

    fn only(group: &LeaderGroup, service: Service, endpoints: &[&str]) -> Option<ServiceLine> {
        let slices = [slice(&service.name_any(), endpoints)];
        lines(group, &pods(), &[service], &slices).pop()
    }

    fn managed() -> LeaderGroup {
        let mut web = web();
        web.spec.routing.endpoints = Endpoints::Managed;
        web
    }

    fn selecting(selector: &Value) -> Option<(Selects, String)> {
        only(&web(), service("s", selector), &["web-1"]).map(|line| (line.selects, line.problem))
    }

    #[test]
    fn a_service_is_known_by_what_it_selects() {
        let role = "leadergroup.dev/role";
        let fine = |selects| Some((selects, String::new()));
        assert_eq!(selecting(&json!({ "app": "web", role: "active" })), fine(Selects::Active));
        assert_eq!(selecting(&json!({ role: "active" })), fine(Selects::Active));
        assert_eq!(selecting(&json!({ "app": "web", role: "standby" })), fine(Selects::Standbys));
        assert_eq!(selecting(&json!({ "app": "web" })), fine(Selects::AllPods));
        for other in [json!({ "app": "other" }), json!({ "app": "other", role: "active" }), json!({})] {
            assert_eq!(selecting(&other), None);
        }
        let (selects, problem) = selecting(&json!({ "app": "web", role: "actve" })).expect("a line");
        assert!(selects == Selects::NoRole && problem.contains("write active"), "{problem}");
        for (group, remedy) in
            [(managed(), "leadergroup.dev/group=web"), (web(), "routing.endpoints: Managed")]
        {
            let service = service("s", &json!({ "app": "web", role: "managed" }));
            let line = only(&group, service, &[]).expect("a line");
            assert!(line.selects == Selects::NoRole && line.problem.contains(remedy), "{}", line.problem);
        }
        let (selects, problem) =
            selecting(&json!({ "app": "web", "tier": "x", role: "active" })).expect("a line");
        assert!(
            selects == Selects::OtherLabels && problem.contains("no pod of the group has tier=x"),
            "{problem}"
        );
    }

    #[test]
    fn the_endpoints_are_compared_with_the_active_pod() {
        let problem = |group: LeaderGroup, endpoints: &[&str]| {
            only(&group, good_service(), endpoints).expect("a line").problem
        };
        assert_eq!(problem(web(), &["web-1"]), "");
        assert!(problem(web(), &[]).contains("has no ready endpoint, although web-1 is active"));
        assert_eq!(problem(web(), &["web-0"]), "it routes to web-0, and web-1 is active");
        assert!(problem(web(), &["web-0", "web-1"]).contains("routes to web-0, web-1"));
        assert!(problem(without_active(), &[]).contains("because no pod is active"));
        assert!(problem(without_active(), &["web-0"]).contains("although no pod is active"));
        let mut unseen = web();
        unseen.status = None;
        assert_eq!(problem(unseen, &["web-0"]), "");
    }

    #[test]
    fn a_service_with_managed_endpoints_is_known_by_its_label() {
        let mut labelled = service("s", &json!({}));
        labelled.labels_mut().insert(GROUP_LABEL.to_owned(), "web".to_owned());
        let line = only(&managed(), labelled, &["web-1"]).expect("a line");
        assert_eq!((line.selects, line.problem.as_str()), (Selects::Managed, ""));
        // Where Kubernetes writes the endpoints, the selector counts.
        let mut labelled = good_service();
        labelled.labels_mut().insert(GROUP_LABEL.to_owned(), "web".to_owned());
        let line = only(&web(), labelled, &["web-0"]).expect("a line");
        assert_eq!((line.selects, line.problem.is_empty()), (Selects::Active, false));
    }

    #[test]
    fn the_label_says_that_a_service_is_meant_for_the_active_pod() {
        let words = "it has the label leadergroup.dev/group=web, so it is meant for the active pod, and does not select \
                     leadergroup.dev/role=active";
        for (selector, selects) in [
            (json!({ "app": "web" }), Selects::AllPods),
            (json!({ "app": "web", "leadergroup.dev/role": "standby" }), Selects::Standbys),
            (json!({}), Selects::NoRole),
        ] {
            let mut labelled = service("s", &selector);
            labelled.labels_mut().insert(GROUP_LABEL.to_owned(), "web".to_owned());
            let line = only(&web(), labelled.clone(), &[]).expect("a line");
            assert!(line.selects == selects && line.problem.starts_with(words), "{line:?}");
            labelled.labels_mut().insert(GROUP_LABEL.to_owned(), "other".to_owned());
            assert!(only(&web(), labelled, &[]).is_none_or(|line| line.problem.is_empty()), "{selector}");
        }
    }
}
