//! Puts the agent into a pod: a pod's metadata and spec in, the changed spec out.
//!
//! The chart's `MutatingAdmissionPolicy` does the same in the cluster. `tests/operator` compares the two.

use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use crate::api::STOP_TIMEOUT_SECONDS;

/// The label of a pod that names the `LeaderGroup` whose agent is to run its program.
pub(super) const GROUP_LABEL: &str = "leadergroup.dev/agent";
/// The scheduling gate of a pod that must not run without the agent.
const GATE: &str = "leadergroup.dev/agent";
const CONTAINER_ANNOTATION: &str = "leadergroup.dev/agent-container";
const READY_ANNOTATION: &str = "leadergroup.dev/agent-ready";
const STOP_TIMEOUT_ANNOTATION: &str = "leadergroup.dev/agent-stop-timeout";

/// The name of the init container, the volume and the port.
const AGENT: &str = "agent";
const DIRECTORY: &str = "/agent";
const PROGRAM: &str = "/agent/leadergroup-agent";
const PORT: u16 = 9470;
/// Where the agent writes by default, as the kubelet reads by default.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// A pod's `terminationGracePeriodSeconds`, unless it says something else.
const GRACE_PERIOD: i64 = 30;
const POD_VARIABLE: &str = "LEADERGROUP_POD";

/// What the user wants. The pod's label and annotations say what is left open.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    pub(super) group: Option<String>,
    pub(super) container: Option<String>,
    pub(super) image: String,
    pub(super) ready: Option<String>,
    pub(super) stop_timeout: Option<String>,
}

/// What has become of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Injected {
    /// The agent is in it now.
    Now,
    /// It was there before.
    Before,
}

/// Puts the agent of a group into a pod. An error leaves it as it was.
pub(super) fn inject(
    metadata: &Value,
    spec: &mut Value,
    group: &str,
    wish: &Wish,
) -> Result<Injected, Refusal> {
    if let Some(command) = agent_command(spec) {
        let named = [format!("--group={group}"), group.to_owned()];
        let mut own = command.iter().filter_map(Value::as_str).take_while(|word| *word != "--");
        if !own.any(|word| named.iter().any(|name| name == word)) {
            return Err(Refusal::OtherGroup(group_of(command)));
        }
        // A user who has written all of it may have written the gate as well.
        return Ok(if open_gate(spec)? { Injected::Now } else { Injected::Before });
    }
    let annotation = |key: &str| metadata["annotations"][key].as_str().map(str::to_owned);
    let chosen = wish.container.clone().or_else(|| annotation(CONTAINER_ANNOTATION));
    let containers = list(spec, "containers")?;
    let wanted = |container: &Value| chosen.as_ref().is_none_or(|name| container["name"] == **name);
    let index = containers.iter().position(wanted).ok_or(Refusal::NoContainer(chosen.clone()))?;
    check_pod(spec)?;

    let mut container = containers[index].clone();
    check_container(&container)?;
    let ready = wish.ready.clone().or_else(|| annotation(READY_ANNOTATION));
    let stop_timeout = wish.stop_timeout.clone().or_else(|| annotation(STOP_TIMEOUT_ANNOTATION));
    check_grace_period(spec, stop_timeout.as_deref())?;
    wrap(&mut container, group, ready, stop_timeout)?;
    let mut installs = json!({
        "name": AGENT,
        "image": wish.image,
        "args": ["install", DIRECTORY],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
        "volumeMounts": [{ "name": AGENT, "mountPath": DIRECTORY }],
    });
    // With the same resources the pod keeps its class of service, fits the same quotas and needs no more than before.
    if let Some(resources) = container.get("resources") {
        installs["resources"] = resources.clone();
    }

    spec["containers"][index] = container;
    insert(spec, "initContainers", 0, installs)?;
    open_gate(spec)?;
    append(spec, "volumes", json!({ "name": AGENT, "emptyDir": {} }))
}

/// The command of the container in which an agent runs already.
fn agent_command(spec: &Value) -> Option<&Vec<Value>> {
    let commands =
        spec["containers"].as_array()?.iter().filter_map(|container| container["command"].as_array());
    commands.into_iter().find(|command| {
        command.first().and_then(Value::as_str).is_some_and(|program| program.ends_with("/leadergroup-agent"))
    })
}

fn group_of(command: &[Value]) -> String {
    let mut words = command.iter().filter_map(Value::as_str);
    words.find_map(|word| word.strip_prefix("--group=")).unwrap_or("of another name").to_owned()
}

/// What no container of the pod may have.
fn check_pod(spec: &Value) -> Result<(), Refusal> {
    for field in ["shareProcessNamespace", "hostPID"] {
        if spec[field] == true {
            return Err(Refusal::SharedProcesses(field));
        }
    }
    if list(spec, "volumes")?.iter().any(|volume| volume["name"] == AGENT) {
        return Err(Refusal::Taken { what: "the name `agent` of a volume".to_owned() });
    }
    for container in list(spec, "containers")?.iter().chain(list(spec, "initContainers")?) {
        if container["name"] == AGENT {
            return Err(Refusal::Taken { what: "the name `agent` of a container".to_owned() });
        }
        if list(container, "ports")?.iter().any(|port| port["containerPort"] == PORT) {
            return Err(Refusal::PortTaken(name(container)));
        }
    }
    Ok(())
}

/// The kubelet would kill the agent before the agent kills the program.
fn check_grace_period(spec: &Value, stop_timeout: Option<&str>) -> Result<(), Refusal> {
    let seconds = |text: &str| {
        let is_number = text.len() < 10 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| is_number).ok_or_else(|| Refusal::StopTimeout(text.to_owned()))
    };
    let stop_timeout: i64 = stop_timeout.map(seconds).transpose()?.unwrap_or(STOP_TIMEOUT_SECONDS).into();
    let grace_period = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(GRACE_PERIOD);
    if grace_period > stop_timeout {
        Ok(())
    } else {
        Err(Refusal::GracePeriod { grace_period, stop_timeout })
    }
}

/// The pod may run: the agent is in it. False if it has no such gate.
fn open_gate(spec: &mut Value) -> Result<bool, Refusal> {
    let before = list(spec, "schedulingGates")?;
    let others: Vec<Value> = before.iter().filter(|gate| gate["name"] != GATE).cloned().collect();
    if others.len() == before.len() {
        return Ok(false);
    }
    if let Some(spec) = spec.as_object_mut() {
        if others.is_empty() {
            spec.remove("schedulingGates");
        } else {
            spec.insert("schedulingGates".to_owned(), others.into());
        }
    }
    Ok(true)
}

/// What the container of the program may not have.
fn check_container(container: &Value) -> Result<(), Refusal> {
    if list(container, "command")?.is_empty() {
        return Err(Refusal::NoCommand(name(container)));
    }
    if list(container, "ports")?.iter().any(|port| port["name"] == AGENT) {
        return Err(Refusal::Taken { what: "the name `agent` of a port".to_owned() });
    }
    let path = |mount: &Value| mount["mountPath"].as_str().map(|path| path.trim_end_matches('/').to_owned());
    if list(container, "volumeMounts")?.iter().any(|mount| path(mount).as_deref() == Some(DIRECTORY)) {
        return Err(Refusal::Taken { what: format!("the path {DIRECTORY} of a volumeMount") });
    }
    if list(container, "env")?.iter().any(|variable| variable["name"] == POD_VARIABLE) {
        return Err(Refusal::PodNamed(name(container)));
    }
    for probe in ["livenessProbe", "startupProbe"] {
        if !container[probe].is_null() && container[probe]["exec"].is_null() {
            return Err(Refusal::AsksStandbys(name(container), probe));
        }
    }
    Ok(())
}

/// Makes the agent the first process of the container.
fn wrap(
    container: &mut Value,
    group: &str,
    ready: Option<String>,
    stop_timeout: Option<String>,
) -> Result<(), Refusal> {
    let probe = container["readinessProbe"].clone();
    let ready = match ready {
        Some(url) if is_ready_check(&url) => Some(url),
        Some(url) => return Err(Refusal::Ready(url)),
        None if probe.is_null() => None,
        None => Some(ready_check(container, &probe)?),
    };
    let mut command = vec![PROGRAM.to_owned(), "run".to_owned(), format!("--group={group}")];
    command.extend(ready.map(|url| format!("--ready={url}")));
    command.extend(stop_timeout.map(|seconds| format!("--stop-timeout={seconds}")));
    let message = container["terminationMessagePath"].as_str().filter(|path| *path != TERMINATION_LOG);
    command.extend(message.map(|path| format!("--termination-log={path}")));
    command.push("--".to_owned());
    let mut command: Vec<Value> = command.into_iter().map(Value::from).collect();
    command.extend(list(container, "command")?.iter().cloned());
    container["command"] = command.into();

    // Its periods and thresholds stay.
    let mut asks = probe.as_object().cloned().unwrap_or_default();
    for way in ["exec", "grpc", "tcpSocket"] {
        asks.remove(way);
    }
    asks.insert("httpGet".to_owned(), json!({ "path": "/ready", "port": AGENT }));
    container["readinessProbe"] = Value::Object(asks);
    append(container, "ports", json!({ "name": AGENT, "containerPort": PORT }))?;
    let pod = json!({ "name": POD_VARIABLE, "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } });
    append(container, "env", pod)?;
    append(container, "volumeMounts", json!({ "name": AGENT, "mountPath": DIRECTORY }))?;
    Ok(())
}

/// How the agent asks the program what the kubelet has asked before.
fn ready_check(container: &Value, probe: &Value) -> Result<String, Refusal> {
    let refuse = |why| Refusal::Readiness(name(container), why);
    let port = |port: &Value| -> Result<u64, Refusal> {
        let named = |all: &[Value]| {
            all.iter()
                .find(|one| one["name"] == *port && port.is_string())
                .map(|one| one["containerPort"].clone())
        };
        let number = port.as_u64().or_else(|| named(list(container, "ports").ok()?)?.as_u64());
        number.ok_or(refuse("its port is not one of the container's ports"))
    };
    let is_set =
        |field: &Value| !field.is_null() && field != "" && field.as_array().is_none_or(|all| !all.is_empty());
    if !probe["httpGet"].is_null() {
        let get = &probe["httpGet"];
        if is_set(&get["scheme"]) && get["scheme"] != "HTTP" {
            return Err(refuse("HTTPS"));
        }
        if is_set(&get["httpHeaders"]) || is_set(&get["host"]) {
            return Err(refuse("with a host or headers of its own"));
        }
        let path = get["path"].as_str().unwrap_or("/");
        let slash = if path.starts_with('/') { "" } else { "/" };
        let url = format!("http://:{}{slash}{path}", port(&get["port"])?);
        return if is_ready_check(&url) { Ok(url) } else { Err(refuse("its path is no path of a URL")) };
    }
    if probe["tcpSocket"].is_null() {
        return Err(refuse("exec or gRPC"));
    }
    if is_set(&probe["tcpSocket"]["host"]) {
        return Err(refuse("with a host of its own"));
    }
    Ok(format!("tcp://:{}", port(&probe["tcpSocket"]["port"])?))
}

/// Whether the agent accepts it.
fn is_ready_check(url: &str) -> bool {
    let is_port = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0);
    match url.strip_prefix("http://:") {
        Some(rest) => {
            let (port, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            is_port(port) && (path.is_empty() || path.parse::<http::Uri>().is_ok())
        }
        None => url.strip_prefix("tcp://:").is_some_and(is_port),
    }
}

fn name(container: &Value) -> String {
    container["name"].as_str().unwrap_or("without a name").to_owned()
}

/// A list of an object, empty if it is not there.
fn list<'a>(object: &'a Value, field: &'static str) -> Result<&'a [Value], Refusal> {
    match &object[field] {
        Value::Null => Ok(&[]),
        Value::Array(all) => Ok(all),
        _ => Err(Refusal::Malformed(field)),
    }
}

fn append(object: &mut Value, field: &'static str, item: Value) -> Result<Injected, Refusal> {
    let end = list(object, field)?.len();
    insert(object, field, end, item)
}

fn insert(object: &mut Value, field: &'static str, at: usize, item: Value) -> Result<Injected, Refusal> {
    let object: &mut Map<String, Value> = object.as_object_mut().ok_or(Refusal::Malformed(field))?;
    let all = object.entry(field).or_insert(Value::Null);
    if all.is_null() {
        *all = json!([]);
    }
    all.as_array_mut().ok_or(Refusal::Malformed(field))?.insert(at, item);
    Ok(Injected::Now)
}

#[cfg(test)]
mod tests;
