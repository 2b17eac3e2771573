//! What the server makes of an object that a client sends, and when it refuses it: defaults, the status that only its
//! subresource writes, the generation, validation.
//!
//! Of the many rules for the specs of the built-in kinds, only those are here that the operator and the harness can
//! meet. Their fields get no defaults: what a spec should have, the harness writes.

use serde_json::{Value, json};

use super::{
    failure::{Failure, FieldError},
    kinds::{Generation, Kind},
    metadata,
    names::Sequence,
    object::Object,
    schema,
};

/// The part of an object that a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status, if that is a subresource.
    Main,
    Status,
    /// Everything at once, which only the harness does.
    Whole,
}

/// The object to store for what a client has sent.
pub fn create(
    kind: Kind,
    namespace: &str,
    mut value: Value,
    now: &str,
    sequence: &mut Sequence,
) -> Result<Value, Failure> {
    metadata::begin(kind, namespace, &mut value, now, sequence)?;
    let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if kind.traits().generation != Generation::None {
        value["metadata"]["generation"] = 1.into();
    }
    match kind {
        Kind::Pod => value["status"] = json!({ "phase": "Pending", "qosClass": "BestEffort" }),
        Kind::Namespace => value["status"] = json!({ "phase": "Active" }),
        Kind::Service => value["status"] = json!({ "loadBalancer": {} }),
        Kind::ReplicaSet => value["status"] = json!({ "replicas": 0 }),
        Kind::StatefulSet => value["status"] = json!({ "replicas": 0, "availableReplicas": 0 }),
        Kind::Deployment => value["status"] = json!({}),
        Kind::LeaderGroup => {
            remove(&mut value, "status");
            schema::complete(&mut value);
        }
        // Kubelets create a node with its status.
        Kind::Node | Kind::Endpoints | Kind::EndpointSlice | Kind::Event | Kind::Lease => {}
    }
    let mut problems = metadata::problems(None, &value);
    problems.extend(content_problems(kind, None, &value));
    if problems.is_empty() { Ok(value) } else { Err(Failure::invalid(kind, &name, &problems)) }
}

/// The object to store in the place of `old`. Its version is that of `old`.
pub fn update(old: &Object, part: Part, mut value: Value) -> Result<Value, Failure> {
    let (kind, name) = (old.kind, old.key.name.as_str());
    if kind == Kind::LeaderGroup {
        schema::complete(&mut value);
    }
    metadata::place(kind, &old.key.namespace, &mut value)?;
    if let Some(given) = value["metadata"]["name"].as_str().filter(|given| *given != name) {
        let message = format!("the name of the object ({given}) does not match the name on the URL ({name})");
        return Err(Failure::bad_request(&message));
    }
    value["metadata"]["name"] = name.into();
    check_version(old, &value)?;
    metadata::keep(old, &mut value);
    prepare(old, part, &mut value);
    value["metadata"]["resourceVersion"] = old.metadata()["resourceVersion"].clone();
    let mut problems = metadata::problems(Some(old), &value);
    problems.extend(content_problems(kind, Some(old).filter(|_| part != Part::Whole), &value));
    if problems.is_empty() { Ok(value) } else { Err(Failure::invalid(kind, name, &problems)) }
}

fn check_version(old: &Object, value: &Value) -> Result<(), Failure> {
    let (kind, name) = (old.kind, old.key.name.as_str());
    let given = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let version = match given {
        "" => 0,
        given => given.parse().map_err(|_| {
            let problem = FieldError::invalid("metadata.resourceVersion", &given.into(), "not a number");
            Failure::invalid(kind, name, &[problem])
        })?,
    };
    match version {
        0 if kind.traits().unconditional => Ok(()),
        0 => Err(Failure::unversioned(kind, name)),
        version if version == old.revision => Ok(()),
        _ => Err(Failure::stale(kind, name)),
    }
}

/// Puts back what this request does not write, and raises the generation.
fn prepare(old: &Object, part: Part, value: &mut Value) {
    let traits = old.kind.traits();
    match part {
        Part::Main if traits.status => copy(old.value(), value, "status"),
        Part::Whole | Part::Main => {}
        // Only the status of a custom resource is written.
        Part::Status if old.kind == Kind::LeaderGroup => {
            let status = value.get("status").cloned();
            value.clone_from(old.value());
            match status {
                Some(status) => value["status"] = status,
                None => remove(value, "status"),
            }
        }
        Part::Status => {
            copy(old.value(), value, "spec");
            let owners = old.metadata()["ownerReferences"].clone();
            value["metadata"]["ownerReferences"] = owners;
            metadata::tidy(value);
        }
    }
    let content = |value: &Value| {
        let mut content = value.clone();
        remove(&mut content, "metadata");
        content
    };
    let is_raised = match traits.generation {
        Generation::None => false,
        Generation::Spec => value["spec"] != old.value()["spec"],
        Generation::ContentAndLabels => {
            value["metadata"]["labels"] != old.metadata()["labels"] || content(value) != content(old.value())
        }
    };
    if is_raised {
        raise_generation(value);
    }
}

/// Raises the generation of an object that has one.
pub fn raise_generation(value: &mut Value) {
    if let Some(generation) = value["metadata"]["generation"].as_i64() {
        value["metadata"]["generation"] = (generation + 1).into();
    } else {
        metadata::tidy(value);
    }
}

fn content_problems(kind: Kind, old: Option<&Object>, value: &Value) -> Vec<FieldError> {
    match (kind, old) {
        (Kind::LeaderGroup, _) => schema::problems(value),
        (Kind::Pod, Some(old)) => pod_problems(&old.value()["spec"], &value["spec"]),
        (Kind::EndpointSlice, Some(old)) if old.value()["addressType"] != value["addressType"] => {
            vec![FieldError::invalid("addressType", &value["addressType"], "field is immutable")]
        }
        _ => Vec::new(),
    }
}

/// What of a pod's spec may not change so.
fn pod_problems(old: &Value, new: &Value) -> Vec<FieldError> {
    if old == new {
        return Vec::new();
    }
    let deadline = |spec: &Value| spec["activeDeadlineSeconds"].as_i64();
    if let Some(before) = deadline(old) {
        let problem = match deadline(new) {
            None => "must not update from a positive integer to nil value",
            Some(after) if after > before => "must be less than or equal to previous value",
            Some(_) => "",
        };
        if !problem.is_empty() {
            let path = "spec.activeDeadlineSeconds";
            return vec![FieldError::invalid(path, &new["activeDeadlineSeconds"], problem)];
        }
    }
    let tolerations = |spec: &Value| spec["tolerations"].as_array().cloned().unwrap_or_default();
    let added_to = tolerations(new);
    let only_added = tolerations(old).iter().all(|toleration| added_to.contains(toleration));
    if only_added && without_mutable(old) == without_mutable(new) {
        return Vec::new();
    }
    let problem = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                   existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)";
    vec![FieldError::forbidden("spec", problem)]
}

/// The spec of a pod without what may change.
fn without_mutable(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for field in ["activeDeadlineSeconds", "tolerations"] {
        remove(&mut spec, field);
    }
    for containers in ["containers", "initContainers"] {
        for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            remove(container, "image");
        }
    }
    spec
}

fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => remove(to, field),
    }
}

fn remove(value: &mut Value, field: &str) {
    if let Value::Object(fields) = value {
        fields.remove(field);
    }
}
