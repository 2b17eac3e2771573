//! Whether a Service whose endpoints Kubernetes writes routes to the active pod of its group, and to nothing else:
//! pure, from the Service and its `EndpointSlices`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::ResourceExt;

use super::{Marks, SERVICE_NAME_LABEL};
use crate::api::{GROUP_LABEL, NO_ROLE, PodRef};

/// So many endpoints are named. A Service that selects only the role label may have those of all groups.
const MOST_NAMED: usize = 3;

/// The selector of a Service, if it has one.
pub fn selector_of(service: &Service) -> Option<&BTreeMap<String, String>> {
    service.spec.as_ref()?.selector.as_ref().filter(|selector| !selector.is_empty())
}

/// Why this Service cannot have endpoints.
pub fn without_endpoints(service: &Service) -> Option<String> {
    let kind = service.spec.as_ref()?.type_.as_deref();
    (kind == Some("ExternalName")).then(|| {
        format!(
            "Service {} is of type ExternalName and has no endpoints; use another type",
            service.name_any()
        )
    })
}

/// Why the selector of this Service does not select the active pod, and what to write; none if it may do so.
pub fn selects_another(service: &Service, marks: &Marks) -> Option<String> {
    if let Some(problem) = without_endpoints(service) {
        return Some(problem);
    }
    let (name, label) = (service.name_any(), &marks.label);
    let wanted = format!("{label}: {}", marks.active);
    let Some(selector) = selector_of(service) else {
        return Some(format!(
            "Service {name} has no selector, so nobody keeps its endpoints; give it one that contains {wanted}"
        ));
    };
    let role = selector.get(label);
    let (what, remedy) = match role {
        Some(role) if *role == marks.active => return None,
        Some(role) if *role == NO_ROLE => (
            format!("selects {label}: {NO_ROLE}, which no pod has"),
            "or set routing.endpoints: Managed in the LeaderGroup".to_owned(),
        ),
        Some(role) => {
            (format!("selects {label}: {role}"), format!("or take the label {GROUP_LABEL} off the Service"))
        }
        None => (
            "selects pods whatever their role".to_owned(),
            format!("or take the label {GROUP_LABEL} off the Service"),
        ),
    };
    Some(format!("Service {name} {what}; write {wanted} in its selector, {remedy}"))
}

/// How the ready endpoints of a Service differ from this active pod alone, and what to do; none if they do not. While
/// that pod is not `ready`, a Service without endpoints is as it should be.
pub fn misrouted(
    service: &Service,
    slices: &[&EndpointSlice],
    active: &PodRef,
    ready: bool,
) -> Option<String> {
    let name = service.name_any();
    let own = slices.iter().filter(|slice| slice.labels().get(SERVICE_NAME_LABEL) == Some(&name));
    let (mut lists_active, mut others) = (false, BTreeSet::new());
    for endpoint in own.flat_map(|slice| &slice.endpoints).filter(|endpoint| is_ready(endpoint)) {
        let pod = endpoint.target_ref.as_ref();
        if pod.and_then(|pod| pod.uid.as_ref()) == Some(&active.uid) {
            lists_active = true;
        } else {
            let pod = pod.and_then(|pod| pod.name.as_ref());
            others.extend(pod.or_else(|| endpoint.addresses.first()));
        }
    }
    if !others.is_empty() {
        let mut named =
            others.iter().take(MOST_NAMED).map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(more) = others.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
            named += &format!(" and {more} more");
        }
        return Some(format!(
            "Service {name} routes to {named}, and {} is the active pod; let its selector contain the labels of this \
             group's pods, and see who writes its EndpointSlices",
            active.name
        ));
    }
    (ready && !lists_active).then(|| {
        format!(
            "Service {name} routes to no pod, and {} is active and ready; compare its selector with the labels of that \
             pod, and see whether Kubernetes writes its EndpointSlices",
            active.name
        )
    })
}

/// Whether an endpoint gets traffic. One that says nothing does.
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::RoutingSpec;

    fn service(spec: &Value) -> Service {
        serde_json::from_value(json!({ "metadata": { "name": "front" }, "spec": spec })).expect("a Service")
    }

    /// A slice of this Service, with a pod or an address for each endpoint, and whether it is ready.
    fn slice(service: &str, endpoints: &[(&str, Option<bool>)]) -> EndpointSlice {
        let endpoints = endpoints.iter().map(|(pod, ready)| {
            let target = json!({ "kind": "Pod", "name": pod, "uid": format!("uid-of-{pod}") });
            let target = if pod.starts_with("192.") { Value::Null } else { target };
            json!({ "addresses": [pod], "conditions": { "ready": ready }, "targetRef": target })
        });
        let slice = json!({ "metadata": { "labels": { "kubernetes.io/service-name": service } },
            "addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>() });
        serde_json::from_value(slice).expect("a slice")
    }

    #[test]
    fn a_service_selects_the_active_role_or_it_is_said_what_to_write() {
        let marks = Marks::from(&RoutingSpec::default());
        let role = "leadergroup.dev/role";
        for fine in [json!({ role: "active" }), json!({ "app": "web", role: "active" })] {
            assert_eq!(selects_another(&service(&json!({ "selector": fine })), &marks), None);
        }
        for (spec, words) in [
            (json!({}), ["has no selector", "contains leadergroup.dev/role: active"]),
            (json!({ "selector": {} }), ["has no selector", "contains leadergroup.dev/role: active"]),
            (
                json!({ "selector": { "app": "web" } }),
                ["whatever their role", "write leadergroup.dev/role: active"],
            ),
            (
                json!({ "selector": { role: "standby" } }),
                ["role: standby", "take the label leadergroup.dev/group off"],
            ),
            (
                json!({ "selector": { role: "managed" } }),
                ["which no pod has", "set routing.endpoints: Managed"],
            ),
            (
                json!({ "type": "ExternalName", "selector": { role: "active" } }),
                ["is of type ExternalName", "another type"],
            ),
        ] {
            let problem = selects_another(&service(&spec), &marks).expect("a problem");
            assert!(words.iter().all(|word| problem.contains(word)), "{spec}: {problem}");
        }
        let other = Marks { label: "example.com/role".to_owned(), active: "leader".to_owned(), ..marks };
        let selects = |value| service(&json!({ "selector": { "example.com/role": value } }));
        assert_eq!(selects_another(&selects("leader"), &other), None);
        assert!(selects_another(&selects("active"), &other).expect("a problem").contains("role: leader"));
    }

    #[test]
    fn the_ready_endpoints_are_the_active_pod_alone() {
        let front = service(&json!({}));
        let active = PodRef { name: "web-1".into(), uid: "uid-of-web-1".into() };
        let judge = |ready, slices: &[EndpointSlice]| {
            misrouted(&front, &slices.iter().collect::<Vec<_>>(), &active, ready)
        };
        let (yes, no) = (Some(true), Some(false));
        for endpoints in [
            &[("web-1", yes)][..],
            &[("web-1", None)],
            // The former one ends.
            &[("web-1", yes), ("web-0", no)],
        ] {
            assert_eq!(judge(true, &[slice("front", endpoints)]), None, "{endpoints:?}");
        }
        // A slice for each family, and one of another Service.
        let both = [slice("front", &[("web-1", yes)]), slice("front", &[("web-1", yes)])];
        assert_eq!(judge(true, &both), None);
        assert_eq!(judge(true, &[slice("front", &[("web-1", yes)]), slice("back", &[("web-0", yes)])]), None);

        for none in [
            &[][..],
            &[slice("front", &[])],
            &[slice("front", &[("web-1", no)])],
            &[slice("back", &[("web-1", yes)])],
        ] {
            let problem = judge(true, none).expect("a problem");
            assert!(problem.starts_with("Service front routes to no pod, and web-1 is active"), "{problem}");
            assert_eq!(judge(false, none), None, "it is not ready");
        }
        for (endpoints, named) in [
            (&[("web-0", yes)][..], "web-0"),
            (&[("web-1", yes), ("web-0", None)], "web-0"),
            (&[("web-1", yes), ("192.0.2.7", yes)], "192.0.2.7"),
            (&[("d", yes), ("a", yes), ("c", yes), ("b", yes)], "a, b, c and 1 more"),
        ] {
            for ready in [true, false] {
                let problem = judge(ready, &[slice("front", endpoints)]).expect("a problem");
                let wanted = format!("Service front routes to {named}, and web-1 is the active pod");
                assert!(problem.starts_with(&wanted), "{problem}");
            }
        }
        // An earlier pod of this name.
        let former = PodRef { uid: "another".into(), ..active.clone() };
        assert!(misrouted(&front, &[&slice("front", &[("web-1", yes)])], &former, true).is_some());
    }
}
