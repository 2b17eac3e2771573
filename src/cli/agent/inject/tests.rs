use super::*;

fn wish() -> Wish {
    Wish { image: "agent:1".to_owned(), ..Wish::default() }
}

fn pod(container: &Value) -> Value {
    let mut own = json!({ "name": "main", "image": "main:1", "command": ["/bin/main"], "args": ["-v"] });
    for (key, value) in container.as_object().expect("fields") {
        own[key] = value.clone();
    }
    json!({ "containers": [own], "volumes": [{ "name": "data" }], "initContainers": [{ "name": "first" }] })
}

fn injected(container: &Value, metadata: &Value, wish: &Wish) -> Result<Value, Refusal> {
    let mut spec = pod(container);
    inject(metadata, &mut spec, "nightly", wish).map(|injected| {
        assert_eq!(injected, Injected::Now);
        spec
    })
}

fn refusal(change: impl Fn(&mut Value)) -> Refusal {
    let mut spec = pod(&json!({}));
    change(&mut spec);
    let before = spec.clone();
    let refusal = inject(&json!({}), &mut spec, "nightly", &wish()).expect_err("it is refused");
    assert_eq!(spec, before, "a refusal changes nothing");
    refusal
}

#[test]
fn the_agent_is_added_and_nothing_is_lost() {
    let own = json!({ "env": [{ "name": "A", "value": "b" }], "resources": { "limits": { "cpu": "1" } } });
    let spec = injected(&own, &json!({}), &wish()).expect("it is injected");
    let limits = json!({ "limits": { "cpu": "1" } });
    assert_eq!(
        spec,
        json!({
            "initContainers": [
                {
                    "name": "agent",
                    "image": "agent:1",
                    "args": ["install", "/agent"],
                    "resources": limits,
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": { "drop": ["ALL"] },
                        "readOnlyRootFilesystem": true,
                    },
                    "volumeMounts": [{ "name": "agent", "mountPath": "/agent" }],
                },
                { "name": "first" },
            ],
            "containers": [{
                "name": "main",
                "image": "main:1",
                "command": ["/agent/leadergroup-agent", "run", "--group=nightly", "--", "/bin/main"],
                "args": ["-v"],
                "env": [
                    { "name": "A", "value": "b" },
                    { "name": "LEADERGROUP_POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                ],
                "ports": [{ "name": "agent", "containerPort": 9470 }],
                "readinessProbe": { "httpGet": { "path": "/ready", "port": "agent" } },
                "resources": limits,
                "volumeMounts": [{ "name": "agent", "mountPath": "/agent" }],
            }],
            "volumes": [{ "name": "data" }, { "name": "agent", "emptyDir": {} }],
        })
    );
}

#[test]
fn a_second_time_changes_nothing_and_names_another_group() {
    let mut spec = injected(&json!({}), &json!({}), &wish()).expect("it is injected");
    let before = spec.clone();
    assert_eq!(inject(&json!({}), &mut spec, "nightly", &wish()), Ok(Injected::Before));
    let other = inject(&json!({}), &mut spec, "daily", &wish());
    assert_eq!(other, Err(Refusal::OtherGroup("nightly".to_owned())));
    // An argument of the program is no argument of the agent.
    spec["containers"][0]["command"].as_array_mut().expect("a command").push("--group=daily".into());
    assert!(inject(&json!({}), &mut spec, "daily", &wish()).is_err());
    spec["containers"][0]["command"].as_array_mut().expect("a command").pop();
    assert_eq!(spec, before);
}

#[test]
fn the_container_s_own_readiness_probe_becomes_the_agent_s_question_to_the_program() {
    let ports = json!([{ "name": "web", "containerPort": 8080 }]);
    for (probe, url) in [
        (json!({ "httpGet": { "path": "/healthz", "port": 80 } }), "http://:80/healthz"),
        (
            json!({ "httpGet": { "path": "healthz?full=1", "port": "web", "scheme": "HTTP" } }),
            "http://:8080/healthz?full=1",
        ),
        (json!({ "httpGet": { "port": "web", "httpHeaders": [] } }), "http://:8080/"),
        (json!({ "tcpSocket": { "port": "web" } }), "tcp://:8080"),
    ] {
        let mut own = json!({ "ports": ports, "readinessProbe": probe });
        own["readinessProbe"]["periodSeconds"] = 3.into();
        let spec = injected(&own, &json!({}), &wish()).expect("it is injected");
        let container = &spec["containers"][0];
        assert_eq!(container["command"][3], format!("--ready={url}"), "{probe}");
        let asks = json!({ "httpGet": { "path": "/ready", "port": "agent" }, "periodSeconds": 3 });
        assert_eq!(container["readinessProbe"], asks, "{probe}");
    }
    for probe in [
        json!({ "exec": { "command": ["true"] } }),
        json!({ "grpc": { "port": 80 } }),
        json!({ "httpGet": { "port": 80, "scheme": "HTTPS" } }),
        json!({ "httpGet": { "port": 80, "host": "example.com" } }),
        json!({ "httpGet": { "port": 80, "httpHeaders": [{ "name": "A", "value": "b" }] } }),
        json!({ "httpGet": { "port": "unknown" } }),
        json!({ "tcpSocket": { "port": 80, "host": "example.com" } }),
    ] {
        let own = json!({ "readinessProbe": probe });
        let refused = injected(&own, &json!({}), &wish()).expect_err("the agent cannot ask so");
        assert!(refused.to_string().contains("--ready http://:PORT/PATH"), "{refused}");
        let told = Wish { ready: Some("tcp://:80".to_owned()), ..wish() };
        let spec = injected(&own, &json!({}), &told).expect("the user says how");
        assert_eq!(spec["containers"][0]["command"][3], "--ready=tcp://:80");
        let asks = json!({ "httpGet": { "path": "/ready", "port": "agent" } });
        assert_eq!(spec["containers"][0]["readinessProbe"], asks, "{probe}");
    }
}

#[test]
fn annotations_say_what_flags_leave_open() {
    let metadata = json!({ "annotations": {
        CONTAINER_ANNOTATION: "second", READY_ANNOTATION: "tcp://:1", STOP_TIMEOUT_ANNOTATION: "7",
    } });
    let spec = |wish: &Wish| {
        let mut spec = pod(&json!({}));
        let second = json!({ "name": "second", "command": ["b"], "terminationMessagePath": "/end" });
        spec["containers"].as_array_mut().expect("containers").push(second);
        inject(&metadata, &mut spec, "nightly", wish).map(|_| spec)
    };
    let by_annotation = spec(&wish()).expect("it is injected");
    let words =
        ["/agent/leadergroup-agent", "run", "--group=nightly", "--ready=tcp://:1", "--stop-timeout=7"];
    let command = [&words[..], &["--termination-log=/end", "--", "b"]].concat();
    assert_eq!(by_annotation["containers"][1]["command"], json!(command));
    assert_eq!(by_annotation["containers"][0]["command"], json!(["/bin/main"]));
    let flags = Wish { container: Some("main".to_owned()), stop_timeout: Some("9".to_owned()), ..wish() };
    let by_flag = spec(&flags).expect("it is injected");
    assert_eq!(by_flag["containers"][0]["command"][4], "--stop-timeout=9");
    let missing = Wish { container: Some("third".to_owned()), ..wish() };
    assert_eq!(spec(&missing), Err(Refusal::NoContainer(Some("third".to_owned()))));
    for ready in ["8080", "https://:1/", "http://:0/", "http://example.com:80/", "tcp://:x", "http://:1/a b"]
    {
        assert!(spec(&Wish { ready: Some(ready.to_owned()), ..wish() }).is_err(), "{ready}");
    }
    assert!(spec(&Wish { stop_timeout: Some("5s".to_owned()), ..wish() }).is_err());
}

#[test]
fn what_the_agent_cannot_run_is_refused_with_a_remedy() {
    let set = |field: &'static str, value: Value| {
        move |spec: &mut Value| spec["containers"][0][field] = value.clone()
    };
    let main = || "main".to_owned();
    assert_eq!(refusal(set("command", json!([]))), Refusal::NoCommand(main()));
    assert_eq!(refusal(set("command", Value::Null)), Refusal::NoCommand(main()));
    assert_eq!(refusal(set("command", json!("sh"))), Refusal::Malformed("command"));
    assert_eq!(refusal(set("ports", json!([{ "containerPort": 9470 }]))), Refusal::PortTaken(main()));
    assert_eq!(refusal(set("env", json!([{ "name": "LEADERGROUP_POD" }]))), Refusal::PodNamed(main()));
    for probe in ["livenessProbe", "startupProbe"] {
        let asks = json!({ "tcpSocket": { "port": 80 } });
        assert_eq!(refusal(set(probe, asks)), Refusal::AsksStandbys(main(), probe));
        let own = json!({ probe: { "exec": { "command": ["true"] } } });
        assert!(
            injected(&own, &json!({}), &wish()).is_ok(),
            "the command may know that the program does not run"
        );
    }
    for field in ["shareProcessNamespace", "hostPID"] {
        assert_eq!(refusal(|spec| spec[field] = true.into()), Refusal::SharedProcesses(field));
    }
    let sidecar = json!([{ "name": "s", "ports": [{ "containerPort": 9470 }] }]);
    assert_eq!(refusal(|spec| spec["initContainers"] = sidecar.clone()), Refusal::PortTaken("s".to_owned()));
    let changes: [&dyn Fn(&mut Value); 4] = [
        &|spec| spec["volumes"][0]["name"] = "agent".into(),
        &|spec| spec["initContainers"][0]["name"] = "agent".into(),
        &|spec| spec["containers"][0]["ports"] = json!([{ "name": "agent", "containerPort": 1 }]),
        &|spec| spec["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/agent/" }]),
    ];
    for change in changes {
        assert!(matches!(refusal(change), Refusal::Taken { .. }));
    }
    assert_eq!(refusal(|spec| spec["containers"] = json!([])), Refusal::NoContainer(None));
    assert_eq!(refusal(|spec| spec["containers"] = json!(3)), Refusal::Malformed("containers"));
}
