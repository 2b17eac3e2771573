//! What the chart grants and admits: the rights of the operator's account and of users, and the network policies.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Output},
};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};

use crate::apiserver::programs;

/// Renders a template with these values, for an operator in this namespace.
pub(crate) fn render(template: &str, namespace: &str, set: &str, flags: &[&str]) -> Output {
    Command::new(programs::find(&["helm"]))
        .args(["template", "leadergroup", "--namespace", namespace, "--set", set])
        .args(["--show-only", &format!("templates/{template}.yaml")])
        .args(flags)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/leadergroup"))
        .output()
        .unwrap()
}

/// The objects that a program has printed.
pub(crate) fn objects(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_saphyr::from_multiple(std::str::from_utf8(&output.stdout).unwrap()).unwrap()
}

/// The objects of a template, for a release and an operator of this name.
pub(crate) fn rendered(template: &str, name: &str, set: &str) -> Vec<Value> {
    objects(&render(template, "operators", &format!("fullnameOverride={name},{set}"), &[]))
}

/// Creates cluster-scoped objects, and returns them as they are stored.
pub(crate) async fn create(client: &Client, objects: Vec<Value>) -> Vec<DynamicObject> {
    let mut stored = Vec::new();
    for object in objects {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        stored.push(api.create(&PostParams::default(), &object).await.unwrap());
    }
    stored
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap())
}

/// Each right of the roles in a template, in one line: the role and its namespace, the resource, and the verb.
fn rights(template: &str, set: &str) -> BTreeSet<String> {
    let objects = rendered(template, "lg", set);
    let roles = objects.iter().filter(|object| object["kind"].as_str().unwrap().ends_with("Role"));
    let mut rights = BTreeSet::new();
    for role in roles {
        let (name, namespace) = (&role["metadata"]["name"], &role["metadata"]["namespace"]);
        let within = namespace.as_str().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        for rule in role["rules"].as_array().unwrap() {
            let only: Vec<&str> = texts(&rule["resourceNames"]).collect();
            let only = if only.is_empty() { String::new() } else { format!(" {only:?}") };
            for (group, resource) in
                texts(&rule["apiGroups"]).flat_map(|g| texts(&rule["resources"]).map(move |r| (g, r)))
            {
                let verbs: Vec<&str> = texts(&rule["verbs"]).collect();
                let right = format!(
                    "{}{within}: {group}/{resource}{only}: {}",
                    name.as_str().unwrap(),
                    verbs.join(" ")
                );
                assert!(rights.insert(right.clone()), "twice: {right}");
            }
        }
    }
    rights
}

fn all(wanted: &[&str]) -> BTreeSet<String> {
    wanted.iter().map(|&right| right.to_owned()).collect()
}

#[test]
fn the_operator_gets_the_rights_that_it_needs_and_no_others() {
    let everywhere = [
        "lg: leadergroup.dev/leadergroups: get list watch patch",
        "lg: leadergroup.dev/leadergroups/status: patch",
        "lg: /pods: get list watch patch",
        "lg: apps/replicasets: get",
        "lg: apps/statefulsets: get",
        "lg: events.k8s.io/events: create",
        "lg-cluster: /namespaces [\"kube-system\"]: get",
        "lg-cluster: /nodes: list watch",
        "lg in kube-node-lease: coordination.k8s.io/leases: list watch",
    ];
    assert_eq!(rights("rbac", "observeServices.enabled=false"), all(&everywhere));
    let observed = ["lg: /services: list watch", "lg: discovery.k8s.io/endpointslices: list watch"];
    assert_eq!(rights("rbac", "observeServices.enabled=true"), all(&[&everywhere[..], &observed].concat()));
    let endpoints = [
        "lg: /services: list watch",
        "lg: discovery.k8s.io/endpointslices: get list watch create update delete",
        "lg: discovery.k8s.io/endpointslices/restricted: create",
    ];
    assert_eq!(rights("rbac", "managedEndpoints.enabled=true"), all(&[&everywhere[..], &endpoints].concat()));
    // With these the finalizer can be removed when a namespace and its binding are deleted.
    let groups = ["lg-groups: leadergroup.dev/leadergroups: get list watch patch"];
    assert_eq!(
        rights("rbac", "observeServices.enabled=false,watchNamespaces={a,b}"),
        all(&[&everywhere[..], &groups].concat())
    );
}

#[test]
fn the_main_role_applies_only_in_watched_namespaces_and_to_the_operator_s_account() {
    for (set, wanted) in [
        ("serviceAccount.name=account", &[None][..]),
        ("serviceAccount.name=account,watchNamespaces={a,b}", &[Some("a"), Some("b")]),
        ("serviceAccount.name=account,watchNamespaces={a,b},rbac.boundElsewhere={b}", &[Some("a")]),
    ] {
        let objects = rendered("rbac", "lg", set);
        let bindings = objects.iter().filter(|object| object["kind"].as_str().unwrap().ends_with("Binding"));
        let mut namespaces = Vec::new();
        for binding in bindings {
            let subject = json!([{ "kind": "ServiceAccount", "name": "account", "namespace": "operators" }]);
            assert_eq!(binding["subjects"], subject, "{binding}");
            let role = &binding["roleRef"];
            if (&role["kind"], &role["name"]) == (&"ClusterRole".into(), &"lg".into()) {
                namespaces.push(binding["metadata"]["namespace"].as_str().map(str::to_owned));
            }
        }
        namespaces.sort();
        let wanted: Vec<_> = wanted.iter().map(|name| name.map(str::to_owned)).collect();
        assert_eq!(namespaces, wanted, "{set}");
    }
}

#[test]
fn users_may_do_with_groups_what_their_role_allows_and_write_no_status() {
    let wanted = [
        "lg-viewer: leadergroup.dev/leadergroups: get list watch",
        "lg-viewer: leadergroup.dev/leadergroups/status: get list watch",
        "lg-editor: leadergroup.dev/leadergroups: create update patch delete",
        "lg-admin: leadergroup.dev/leadergroups: create update patch delete deletecollection",
    ];
    assert_eq!(rights("rbac-users", ""), all(&wanted));
    for role in rendered("rbac-users", "lg", "") {
        let labels = role["metadata"]["labels"].as_object().unwrap();
        let name = role["metadata"]["name"].as_str().unwrap();
        let into: Vec<&str> = labels
            .keys()
            .filter_map(|key| key.strip_prefix("rbac.authorization.k8s.io/aggregate-to-"))
            .collect();
        let wanted = match name {
            "lg-viewer" => "view",
            "lg-editor" => "edit",
            _ => "admin",
        };
        assert_eq!(into, [wanted], "{name}");
    }
}

#[test]
fn the_network_policies_admit_scrapes_to_the_operator_and_the_operator_to_its_database() {
    let set = "networkPolicy.enabled=true,postgresql.mode=Bundled";
    let policies = rendered("networkpolicy", "lg", set);
    let of = |component: &str| {
        let mut those = policies.iter().filter(|policy| {
            policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
        });
        let policy = those.next().unwrap_or_else(|| panic!("none for the {component}: {policies:#?}"));
        assert!(those.next().is_none(), "more than one for the {component}");
        &policy["spec"]
    };
    let operator = of("operator");
    assert_eq!(operator["policyTypes"], json!(["Ingress"]), "it probes any pod on any port");
    assert_eq!(operator["ingress"], json!([{ "ports": [{ "port": "http" }] }]));
    let database = of("postgresql");
    assert_eq!(database["policyTypes"], json!(["Ingress", "Egress"]), "it opens no connection");
    assert_eq!(database["egress"], Value::Null);
    let clients = json!([{ "podSelector": {
        "matchLabels": { "app.kubernetes.io/name": "leadergroup", "app.kubernetes.io/instance": "leadergroup" },
        "matchExpressions": [
            { "key": "app.kubernetes.io/component", "operator": "In", "values": ["operator", "uninstall", "test"] },
        ],
    } }]);
    assert_eq!(database["ingress"], json!([{ "ports": [{ "port": "postgresql" }], "from": clients }]));

    let monitoring = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring";
    let policies = rendered("networkpolicy", "lg", &format!("{set},{monitoring}"));
    let scraper = json!([{ "namespaceSelector": { "matchLabels": { "name": "monitoring" } } }]);
    assert!(policies.iter().any(|policy| policy["spec"]["ingress"][0]["from"] == scraper), "{policies:#?}");
}
