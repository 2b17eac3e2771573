//! The Lua scripts for Argo CD in `examples/integrations/argo-cd.yaml`, run by the interpreter of the version that
//! Argo CD has.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

/// The scripts of the example: that for the health, and those for the actions.
fn scripts() -> (String, Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/integrations/argo-cd.yaml");
    let manifest: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let script = |what: &str| {
        let key = format!("resource.customizations.{what}.leadergroup.dev_LeaderGroup");
        manifest["data"][key].as_str().unwrap().to_owned()
    };
    (script("health"), serde_saphyr::from_str(&script("actions")).unwrap())
}

/// A value as an expression in Lua.
fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Array(items) => format!("{{{}}}", items.iter().map(lua).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(key, value)| format!("[{key:?}] = {}", lua(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// Prints a table as JSON. All of its keys are words.
const PRINTER: &str = r#"
local function encode(value)
  if type(value) ~= "table" then
    return type(value) == "string" and string.format("%q", value) or tostring(value)
  end
  local fields = {}
  for key, field in pairs(value) do
    fields[#fields + 1] = string.format("%q:%s", key, encode(field))
  end
  return "{" .. table.concat(fields, ",") .. "}"
end
print(encode(result))
"#;

/// What a script returns for an object.
fn run(script: &str, object: &Value) -> Value {
    let program = format!("obj = {}\nlocal result = (function()\n{script}\nend)()\n{PRINTER}", lua(object));
    let output = Command::new("lua5.1")
        .args(["-e", &program])
        .output()
        .expect("the tests need the program lua5.1: install the package of that name");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A group of generation 3, as the operator has reported on it.
fn group(conditions: &[(&str, &str)]) -> Value {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|(kind, status)| json!({ "type": kind, "status": status, "message": format!("{kind} is {status}") }))
        .collect();
    json!({
        "metadata": { "name": "web", "generation": 3 },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "paused": false },
        "status": { "observedGeneration": 3, "eligible": 2, "conditions": conditions },
    })
}

#[test]
fn the_health_follows_the_conditions_of_the_present_generation() {
    let (health, _) = scripts();
    let ready = group(&[("Active", "True"), ("Ready", "True"), ("Stalled", "False")]);
    let waiting = group(&[("Ready", "False"), ("Stalled", "False")]);
    let stalled = group(&[("Ready", "False"), ("Stalled", "True")]);
    let with = |group: &Value, path: &str, value: Value| {
        let mut group = group.clone();
        *group.pointer_mut(path).unwrap() = value;
        group
    };
    let unseen = json!({ "metadata": { "name": "web", "generation": 1 }, "spec": {} });
    for (name, group, status, message) in [
        ("ready", &ready, "Healthy", "Ready is True"),
        ("not ready", &waiting, "Progressing", "Ready is False"),
        ("stalled", &stalled, "Degraded", "Stalled is True"),
        ("stalled and paused", &with(&stalled, "/spec/paused", json!(true)), "Degraded", "Stalled is True"),
        ("paused", &with(&ready, "/spec/paused", json!(true)), "Suspended", "spec.paused is set"),
        (
            "paused without an active pod",
            &with(&waiting, "/spec/paused", json!(true)),
            "Suspended",
            "spec.paused",
        ),
        (
            "changed",
            &with(&ready, "/metadata/generation", json!(4)),
            "Progressing",
            "has not seen this generation",
        ),
        (
            "changed after it was stalled",
            &with(&stalled, "/metadata/generation", json!(4)),
            "Progressing",
            "has not seen this generation",
        ),
        ("new", &with(&waiting, "/status/observedGeneration", json!(-1)), "Progressing", "has not seen"),
        ("without a status", &unseen, "Progressing", "has not seen"),
        (
            "without conditions",
            &with(&ready, "/status/conditions", json!([])),
            "Progressing",
            "Ready is missing",
        ),
    ] {
        let said = run(&health, group);
        assert_eq!(said["status"], status, "{name}: {said}");
        assert!(said["message"].as_str().unwrap().contains(message), "{name}: {said}");
    }
}

#[test]
fn the_actions_are_offered_when_they_can_succeed() {
    let (_, actions) = scripts();
    let offered = |group: &Value| {
        let found = run(actions["discovery.lua"].as_str().unwrap(), group);
        ["switchover", "pause", "resume"].map(|name| found[name]["disabled"] == false)
    };
    let mut group = group(&[("Ready", "True")]);
    assert_eq!(offered(&group), [true, true, false]);
    group["status"]["eligible"] = json!(1);
    assert_eq!(offered(&group), [false, true, false], "no other pod could follow");
    group["status"]["eligible"] = json!(2);
    group["spec"]["paused"] = json!(true);
    assert_eq!(offered(&group), [false, false, true]);
    assert_eq!(
        offered(&json!({ "metadata": { "name": "web" }, "spec": {} })),
        [false, true, false],
        "a new group"
    );
}

#[test]
fn the_actions_change_what_they_say_and_nothing_else() {
    let (_, actions) = scripts();
    let act = |name: &str, group: &Value| {
        let definitions = actions["definitions"].as_array().unwrap();
        let definition = definitions.iter().find(|definition| definition["name"] == name).unwrap();
        run(definition["action.lua"].as_str().unwrap(), group)
    };
    // Lists are left out: the printer has no word for their keys.
    let mut group = group(&[]);
    group["status"].as_object_mut().unwrap().remove("conditions");

    let mut paused = group.clone();
    paused["spec"]["paused"] = json!(true);
    assert_eq!(act("pause", &group), paused);
    assert_eq!(act("resume", &paused), group);

    let mut asked = act("switchover", &group);
    let request = asked["metadata"]["annotations"]["leadergroup.dev/switchover"].take();
    let request = request.as_str().unwrap();
    assert!(
        request.starts_with("argo-cd-2") && request.len() <= 64,
        "a name that is new each second: {request}"
    );
    asked["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!(asked, group);

    // An earlier request for a certain pod does not count for this one.
    let former =
        json!({ "leadergroup.dev/switchover": "a", "leadergroup.dev/switchover-to": "web-1", "kept": "yes" });
    group["metadata"]["annotations"] = former;
    let annotations = act("switchover", &group)["metadata"]["annotations"].take();
    assert_eq!(annotations["kept"], "yes");
    assert_ne!(annotations["leadergroup.dev/switchover"], "a");
    assert_eq!(annotations.get("leadergroup.dev/switchover-to"), None);
}
