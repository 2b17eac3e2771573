//! Tests of the findings about a group.

use serde_json::{Value, json};

use super::*;
use crate::plugin::{
    doctor::finding::text,
    operator::Place,
    samples::{good_service, object, operator, plain, pod, pods, service, set, slice, web},
};

fn good() -> Namespace {
    Namespace {
        pods: Ok(pods()),
        services: Ok(vec![good_service()]),
        slices: Ok(vec![slice("web", &["web-1"])]),
        workloads: Vec::new(),
        unread_workloads: Vec::new(),
        policies: Ok(Vec::new()),
        groups: ["web".to_owned()].into(),
    }
}

fn runs() -> Operator {
    Operator::Runs(Place::of(&operator("lg", 2, "")))
}

fn found(group: &LeaderGroup, namespace: &Namespace) -> Vec<(Level, String, String)> {
    let all = findings(group, namespace, &runs()).into_iter();
    all.map(|finding| (finding.level, finding.text.clone(), finding.remedy().to_owned())).collect()
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
    assert_eq!((unseen.len(), unseen[0].1.as_str()), (1, "no operator has reported about it"), "{unseen:?}");
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
    namespace.groups.insert("other".to_owned());
    assert!(found(&web(), &namespace)[0].1.contains("all 2 groups"));
}

#[test]
fn a_workload_must_not_have_the_role_label_nor_a_port_that_is_not_there() {
    let app = json!({ "app": "web" });
    let with_role = json!({ "app": "web", "leadergroup.dev/role": "active" });
    let problem = |selector: &Value, labels: &Value, port: &Value| {
        let mut namespace = good();
        namespace.workloads = vec![workload(selector, labels, port)];
        found(&web(), &namespace).remove(0).1
    };
    assert_eq!(problem(&app, &app, &json!("http")), "nothing is wrong");
    assert_eq!(problem(&app, &app, &json!(8080)), "nothing is wrong");
    assert!(problem(&app, &app, &json!("web")).contains("asks for the port web"));
    assert!(problem(&app, &with_role, &json!("http")).contains("the pod template of Deployment web sets"));
    assert!(
        problem(&with_role, &with_role, &json!("http")).contains("selects its pods by leadergroup.dev/role")
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
fn a_group_that_is_deleted_without_an_operator_needs_its_finalizer_removed() {
    let mut group = web();
    group.metadata.deletion_timestamp = object(json!("2026-11-20T12:00:00Z"));
    let mut namespace = good();
    namespace.services = Ok(Vec::new());
    let of = |operator: Operator| {
        let all = findings(&group, &namespace, &operator);
        assert_eq!(all.len(), 1, "no other hint: {all:?}");
        (all[0].level, all[0].remedy().to_owned())
    };
    let (level, remedy) = of(Operator::Absent);
    let patch = "`kubectl -n shop patch leadergroup web --type merge --patch \
                 '{\"metadata\":{\"finalizers\":null}}'`";
    assert!(level == Level::Wrong && remedy.ends_with(patch), "{remedy}");
    let (level, remedy) = of(Operator::Unknown);
    assert!(level == Level::Hint && remedy.ends_with(patch), "{remedy}");
    let (level, remedy) = of(runs());
    assert!(
        level == Level::Hint && remedy.ends_with("`kubectl -n lg logs deployment/leadergroup --tail 20`"),
        "{remedy}"
    );
}

#[test]
fn an_active_pod_that_is_gone_and_two_active_pods_are_wrong() {
    let mut namespace = good();
    namespace.pods = Ok(vec![pods().remove(0), pods().remove(2)]);
    namespace.slices = Ok(vec![slice("web", &[])]);
    let all = findings(&web(), &namespace, &Operator::Absent);
    assert_eq!(all.len(), 1, "the missing endpoint follows from it: {all:?}");
    assert!(all[0].text.starts_with("its active pod web-1 does not exist any more"), "{all:?}");
    assert!(all[0].remedy().starts_with("let the operator run"), "{all:?}");
    let mut two = pods();
    two[0] = pod("web-0", "active", "True");
    namespace.pods = Ok(two);
    namespace.slices = Ok(vec![slice("web", &["web-0", "web-1"])]);
    let all = found(&web(), &namespace);
    assert_eq!(all[0].1, "two pods carry the active label: web-1 (the holder), web-0");
    assert_eq!(all[1].1, "Service web: it routes to web-0, web-1, and web-1 is active");
    for (_, text, remedy) in &all {
        assert!(remedy.contains("label pod web-0 leadergroup.dev/role-`"), "{text}: {remedy}");
    }
}

/// Worlds in which something is wrong: each finding has a remedy of its own.
#[test]
fn each_finding_has_a_remedy() {
    let mut worlds = Vec::new();
    for kind in ConditionType::ALL {
        let mut group = web();
        set(&mut group, kind.name(), "False", "X", "a message");
        worlds.push((group, good(), usize::from(REPORTED.contains(kind))));
    }
    for (kind, reason) in [
        ("Accepted", "RoleLabelInTemplate"),
        ("Accepted", "DeletionRefused"),
        ("Accepted", "HookFailed"),
        ("Probed", "TcpOnly"),
    ] {
        let mut group = web();
        set(&mut group, kind, "True", reason, "a message");
        worlds.push((group, good(), 1));
    }
    for endpoints in [&[][..], &["web-0"], &["10.1.0.1"], &["web-0", "web-1"]] {
        let namespace = Namespace { slices: Ok(vec![slice("web", endpoints)]), ..good() };
        worlds.push((web(), namespace, 1));
    }
    let leftover = Namespace { slices: Ok(vec![slice("web", &["web-1"])]), ..good() };
    let mut without = web();
    without.status.as_mut().expect("a status").active = None;
    worlds.push((without, leftover, 1));
    for role in ["actve", "managed"] {
        let typo = service("typo", &json!({ "app": "web", "leadergroup.dev/role": role }));
        worlds.push((web(), Namespace { services: Ok(vec![good_service(), typo]), ..good() }, 1));
    }
    let mut alone = web();
    set(&mut alone, "Redundant", "False", "NoStandby", "no other pod");
    alone.status.as_mut().expect("a status").replicas = 1;
    let app = json!({ "app": "web" });
    let namespace = Namespace { workloads: vec![workload(&app, &app, &json!("http"))], ..good() };
    let scaled = found(&alone, &namespace).remove(0).2;
    assert_eq!(scaled, "add a replica: `kubectl -n shop scale deployment/web --replicas 2`");
    for (group, namespace, count) in worlds {
        let all = found(&group, &namespace);
        let bad: Vec<_> = all.iter().filter(|(level, ..)| *level != Level::Fine).collect();
        assert_eq!(bad.len(), count, "{all:?}");
        for (_, text, remedy) in bad {
            let is_own = !remedy.is_empty() && remedy != Remedy::ELSEWHERE;
            assert!(is_own && !remedy.contains("leadergroup status"), "{text}: {remedy:?}");
        }
    }
    let nothing = Finding::new(Level::Wrong, "x", "it failed", "");
    assert_eq!(nothing.remedy(), Remedy::ELSEWHERE);
}

#[test]
fn findings_are_printed_with_their_remedies_and_counted() {
    let mut group = web();
    set(&mut group, "Redundant", "False", "NoStandby", "no other pod could take over now; add replicas");
    group.spec.paused = true;
    let shown = plain(&text(&findings(&group, &good(), &runs()), None));
    let expected = "\
shop/web
  WRONG Redundant is False: no other pod could take over now; add replicas
        -> `kubectl leadergroup explain -n shop web` says what each pod lacks, and what happens next
  hint  it is paused: nothing fails over
        -> `kubectl leadergroup resume -n shop web`

1 thing is wrong. 1 hint.
";
    assert_eq!(shown, expected, "\n{shown}");
}
