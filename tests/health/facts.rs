//! Tests of the facts and the probe that are derived from a pod.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use leadergroup::{
    api::{LeaderGroupSpec, ProbeScheme, Reason, Stamp},
    health::{
        ContainerProblem, PodFacts, PodPhase, ProbeKind, ProbeRefusal, Readiness, ResolvedProbe, Restarts,
    },
};
use leadergroup_agent::answer::Keys;
use serde_json::{Value, json};

fn spec(health: Value) -> LeaderGroupSpec {
    let mut spec: LeaderGroupSpec =
        serde_json::from_value(json!({ "selector": { "matchLabels": { "app": "web" } } })).unwrap();
    spec.health = serde_json::from_value(health).unwrap();
    spec
}

/// A pod of two containers; the second has a readinessProbe.
fn pod() -> Value {
    json!({
        "metadata": {
            "name": "web-0", "namespace": "shop", "uid": "u0", "resourceVersion": "42",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": { "app": "web", "leadergroup.dev/role": "standby" },
            "annotations": { "leadergroup.dev/stamp": "g1/7" },
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                { "name": "proxy", "ports": [{ "name": "http", "containerPort": 15001 }] },
                { "name": "web", "ports": [{ "name": "http", "containerPort": 8080 }],
                  "readinessProbe": {
                      "httpGet": { "path": "/ready?deep=1", "port": "http", "httpHeaders": [{ "name": "Host", "value": "web" }] },
                      "timeoutSeconds": 3 } },
            ],
        },
        "status": {
            "phase": "Running", "podIP": "198.18.0.7", "podIPs": [{ "ip": "198.18.0.7" }, { "ip": "fd00::7" }],
            "conditions": [
                { "type": "ContainersReady", "status": "True" },
                { "type": "Ready", "status": "True" },
            ],
            "containerStatuses": [
                { "name": "proxy", "image": "", "imageID": "", "ready": true, "restartCount": 9,
                  "state": { "terminated": { "exitCode": 1 } } },
                { "name": "web", "image": "", "imageID": "", "ready": true, "restartCount": 2,
                  "state": { "running": {} }, "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } },
            ],
        },
    })
}

fn read(pod: Value, health: Value) -> PodFacts {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    PodFacts::from_pod(&pod, &spec(health))
}

fn port_of(facts: &PodFacts) -> u16 {
    facts.probe.as_ref().unwrap().as_ref().unwrap().port
}

#[test]
fn a_working_pod_is_read_whole() {
    let facts = read(pod(), json!({}));
    let expected = PodFacts {
        name: "web-0".into(),
        namespace: "shop".into(),
        uid: "u0".into(),
        resource_version: "42".into(),
        created: Some("2026-01-02T03:04:05Z".parse().unwrap()),
        node: Some("n1".into()),
        ip: Some([198, 18, 0, 7].into()),
        deleting: false,
        phase: PodPhase::Running,
        disruption_target: false,
        readiness: Readiness::Ready,
        container_problem: None,
        restarts: Some(Restarts { container: "web".into(), count: 2 }),
        ended_agents: Vec::new(),
        role: Some("standby".into()),
        stamp: Some(Stamp { group: "g1".into(), token: 7 }),
        probe: Ok(Some(ResolvedProbe {
            kind: ProbeKind::HttpGet {
                scheme: ProbeScheme::Http,
                path: "/ready?deep=1".parse().unwrap(),
                headers: vec![("host".parse().unwrap(), "web".parse().unwrap())],
            },
            port: 8080,
            timeout: Duration::from_secs(1),
        })),
    };
    assert_eq!(facts, expected, "the probe's own timeout of 3 s is limited to the interval");
    assert_eq!(facts.target().map(|(ip, probe)| (ip, probe.port)), Some(([198, 18, 0, 7].into(), 8080)));
}

#[test]
fn a_terminated_container_names_the_start_of_the_agent_that_has_ended() {
    let keys = [1, 2, 3, 4].map(|seed| Keys::from_seed(&[seed; 32]).unwrap());
    let ended =
        |keys: &Keys| json!({ "terminated": { "exitCode": 1, "message": keys.termination_message() } });
    let container = |name: &str, state: Value, last: Value| {
        json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 1,
            "state": state, "lastState": last })
    };
    let mut pod = pod();
    pod["status"]["containerStatuses"] = json!([
        container("web", ended(&keys[0]), ended(&keys[1])),
        container("proxy", ended(&keys[2]), json!({ "terminated": { "exitCode": 0 } })),
    ]);
    pod["status"]["initContainerStatuses"] = json!([container("agent", ended(&keys[3]), json!({}))]);
    assert_eq!(
        read(pod, json!({})).ended_agents,
        [keys[0].boot(), keys[1].boot()],
        "not of other containers"
    );
}

#[test]
fn an_empty_pod_is_no_evidence_of_anything() {
    let facts = read(json!({}), json!({}));
    assert_eq!((facts.phase, facts.readiness), (PodPhase::Unknown, Readiness::Unknown));
    assert_eq!((facts.ip, facts.probe.clone(), facts.container_problem.clone()), (None, Ok(None), None));
    assert!(!facts.finished() && !facts.deleting && facts.target().is_none());
}

#[test]
fn the_probe_is_taken_from_the_right_container() {
    let mut annotated = pod();
    annotated["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = json!("proxy");
    assert_eq!(read(annotated.clone(), json!({})).probe, Ok(None), "the named container has none");
    assert_eq!(port_of(&read(annotated.clone(), json!({ "container": "web" }))), 8080);
    annotated["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = json!("gone");
    assert_eq!(port_of(&read(annotated, json!({}))), 8080);
    assert_eq!(
        read(pod(), json!({ "container": "db" })).probe,
        Err(ProbeRefusal::UnknownContainer("db".into()))
    );
}

#[test]
fn a_containers_probe_has_the_scheme_that_it_names() {
    for (named, wanted) in [
        (json!("HTTPS"), ProbeScheme::Https),
        (json!("HTTP"), ProbeScheme::Http),
        (json!(null), ProbeScheme::Http),
    ] {
        let mut pod = pod();
        pod["spec"]["containers"][1]["readinessProbe"]["httpGet"]["scheme"] = named.clone();
        let probe = read(pod, json!({})).probe.unwrap().unwrap();
        let ProbeKind::HttpGet { scheme, .. } = probe.kind else { panic!("{named}: {probe:?}") };
        assert_eq!(scheme, wanted, "{named}");
    }
}

#[test]
fn the_groups_own_probe_goes_first() {
    let facts = read(pod(), json!({ "probe": { "tcpSocket": { "port": "http" } }, "timeout": "250ms" }));
    let expected =
        ResolvedProbe { kind: ProbeKind::TcpSocket, port: 8080, timeout: Duration::from_millis(250) };
    assert_eq!(facts.probe, Ok(Some(expected)));
    let facts =
        read(pod(), json!({ "probe": { "httpGet": { "port": 8443, "scheme": "HTTPS", "path": "live" } } }));
    let path = "/live".parse().unwrap();
    let kind = ProbeKind::HttpGet { scheme: ProbeScheme::Https, path, headers: vec![] };
    assert_eq!(facts.probe, Ok(Some(ResolvedProbe { kind, port: 8443, timeout: Duration::from_secs(1) })));
    let facts = read(pod(), json!({ "probe": { "tcpSocket": { "port": 1 } }, "timeout": "3s" }));
    assert_eq!(
        facts.probe.unwrap().unwrap().timeout,
        Duration::from_secs(3),
        "wanted longer than the interval"
    );
    assert_eq!(read(pod(), json!({ "probe": {} })).probe, Err(ProbeRefusal::NoKind));
}

#[test]
fn probes_that_could_harm_or_make_no_sense_are_refused() {
    let with = |probe: Value| {
        let mut pod = pod();
        pod["spec"]["containers"][1]["readinessProbe"] = probe;
        read(pod, json!({})).probe
    };
    let get = |get: Value| with(json!({ "httpGet": get }));
    assert_eq!(
        get(json!({ "port": 80, "host": "metadata.internal" })),
        Err(ProbeRefusal::ForeignHost("metadata.internal".into()))
    );
    assert_eq!(
        with(json!({ "tcpSocket": { "port": 80, "host": "198.18.0.8" } })),
        Err(ProbeRefusal::ForeignHost("198.18.0.8".into()))
    );
    assert!(get(json!({ "port": 80, "host": "fd00::7" })).is_ok(), "one of the pod's own addresses");
    assert_eq!(get(json!({ "port": "grpc" })), Err(ProbeRefusal::UnknownPort("grpc".into())));
    for port in [0, -1, 65_536] {
        assert_eq!(get(json!({ "port": port })), Err(ProbeRefusal::PortOutOfRange(port)));
    }
    assert_eq!(get(json!({ "port": 80, "path": "/a b" })), Err(ProbeRefusal::BadPath("/a b".into())));
    let header = json!([{ "name": "X", "value": "a\r\nEvil: 1" }]);
    assert_eq!(get(json!({ "port": 80, "httpHeaders": header })), Err(ProbeRefusal::BadHeader("X".into())));
    assert_eq!(with(json!({ "exec": { "command": ["true"] } })), Ok(None));
    assert_eq!(with(json!({ "grpc": { "port": 0 } })), Err(ProbeRefusal::PortOutOfRange(0)));
}

#[test]
fn a_grpc_probe_is_of_the_pod_or_of_the_group() {
    let kind = |facts: PodFacts| facts.probe.unwrap().map(|probe| (probe.kind, probe.port));
    let grpc = |service: &str| ProbeKind::Grpc { service: service.to_owned() };
    let mut pod = pod();
    pod["spec"]["containers"][1]["readinessProbe"] = json!({ "grpc": { "port": 50051, "service": "db" } });
    assert_eq!(kind(read(pod.clone(), json!({}))), Some((grpc("db"), 50_051)));
    let own = json!({ "probe": { "grpc": { "port": "http" } } });
    assert_eq!(kind(read(pod, own)), Some((grpc(""), 8080)));
}

#[test]
fn addresses_that_no_pod_has_are_never_probed() {
    for ip in
        ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "::ffff:169.254.169.254"]
    {
        let mut pod = pod();
        pod["status"]["podIP"] = json!(ip);
        let facts = read(pod, json!({}));
        let address: IpAddr = ip.parse().unwrap();
        assert_eq!((facts.ip, facts.probe), (None, Err(ProbeRefusal::ForbiddenAddress(address))), "{ip}");
    }
    for ip in ["198.18.3.4", "fd00::1"] {
        let mut pod = pod();
        pod["status"]["podIP"] = json!(ip);
        assert_eq!(read(pod, json!({})).ip, Some(ip.parse().unwrap()));
    }
}

#[test]
fn the_source_of_a_not_ready_report_is_distinguished() {
    let with = |conditions: Value| {
        let mut pod = pod();
        pod["status"]["conditions"] = conditions;
        read(pod, json!({})).readiness
    };
    let kubelet = json!([
        { "type": "ContainersReady", "status": "False", "reason": "ContainersNotReady" },
        { "type": "Ready", "status": "False", "reason": "ContainersNotReady" },
    ]);
    let gate = json!([
        { "type": "ContainersReady", "status": "True" },
        { "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady" },
    ]);
    let node_controller =
        json!([{ "type": "ContainersReady", "status": "True" }, { "type": "Ready", "status": "False" }]);
    assert_eq!(with(kubelet), Readiness::NotReady);
    assert_eq!(with(gate), Readiness::NotReady);
    assert_eq!(with(node_controller), Readiness::NodeUnheard);
    assert_eq!(with(json!([{ "type": "Ready", "status": "False" }])), Readiness::NotReady);
    assert_eq!(with(json!([{ "type": "Ready", "status": "Unknown" }])), Readiness::Unknown);
}

#[test]
fn the_end_of_a_pod_is_seen_in_each_of_its_forms() {
    let mut deleting = pod();
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    assert!(read(deleting, json!({})).deleting);
    for phase in ["Failed", "Succeeded"] {
        let mut pod = pod();
        pod["status"]["phase"] = json!(phase);
        assert!(read(pod, json!({})).finished());
    }
    for (status, expected) in [("True", true), ("False", false)] {
        let mut pod = pod();
        pod["status"]["conditions"] = json!([{ "type": "DisruptionTarget", "status": status }]);
        assert_eq!(read(pod, json!({})).disruption_target, expected);
    }
}

#[test]
fn of_several_facts_against_a_pod_its_end_is_told_first_and_its_readiness_last() {
    type Fact = fn(&mut PodFacts);
    let facts: [(Fact, Reason); 5] = [
        (|facts| facts.readiness = Readiness::NotReady, Reason::PodNotReady),
        (
            |facts| {
                let container =
                    ContainerProblem { container: "web".into(), reason: "Error".into(), exit_code: None };
                facts.container_problem = Some(container);
            },
            Reason::ContainerTerminated,
        ),
        (|facts| facts.disruption_target = true, Reason::DisruptionTarget),
        (|facts| facts.phase = PodPhase::Failed, Reason::PodFinished),
        (|facts| facts.deleting = true, Reason::PodDeleted),
    ];
    let mut pod = read(pod(), json!({}));
    assert_eq!((pod.ended(), pod.against()), (None, None));
    let unheard = PodFacts { readiness: Readiness::NodeUnheard, ..pod.clone() };
    assert_eq!((unheard.ended(), unheard.against()), (None, Some(Reason::PodNotReady)));
    for (add, reason) in facts {
        add(&mut pod);
        assert_eq!(pod.against(), Some(reason));
        assert_eq!(pod.ended(), Some(reason).filter(|reason| reason.is_end()));
    }
}

#[test]
fn a_container_that_ended_is_a_problem_and_one_that_has_not_begun_is_none() {
    let with = |state: Value, last: Value| {
        let mut pod = pod();
        pod["status"]["containerStatuses"][1]["state"] = state;
        pod["status"]["containerStatuses"][1]["lastState"] = last;
        read(pod, json!({})).container_problem
    };
    let problem = |reason: &str, exit_code| {
        Some(ContainerProblem { container: "web".into(), reason: reason.into(), exit_code })
    };
    let oom = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
    assert_eq!(with(oom.clone(), json!({})), problem("OOMKilled", Some(137)));
    assert_eq!(
        with(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), oom),
        problem("OOMKilled", Some(137))
    );
    assert_eq!(
        with(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), json!({})),
        problem("CrashLoopBackOff", None)
    );
    assert_eq!(with(json!({ "terminated": { "exitCode": 0 } }), json!({})), problem("Unknown", Some(0)));
    assert_eq!(with(json!({ "waiting": { "reason": "ContainerCreating" } }), json!({})), None);
    assert_eq!(with(json!({}), json!({})), None);
}

#[test]
fn a_stamp_that_cannot_be_read_is_none() {
    let mut pod = pod();
    pod["metadata"]["annotations"]["leadergroup.dev/stamp"] = json!("soon");
    assert_eq!(read(pod, json!({})).stamp, None);
}
