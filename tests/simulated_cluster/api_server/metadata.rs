//! The rules for metadata that all kinds share: what clients may set, what is valid, and what may change.

use serde_json::{Value, json};

use super::{
    failure::{Failure, FieldError},
    kinds::Kind,
    names::{Sequence, is_label_value, is_subdomain, qualified_name_problem},
    object::Object,
};

/// Fields that are left out of the JSON if they are empty.
const OPTIONAL: [&str; 5] = ["labels", "annotations", "finalizers", "ownerReferences", "generateName"];
/// The fields that a decoder of the real server knows. `managedFields` and `selfLink` are not kept here.
const KNOWN: [&str; 13] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
];

/// Removes what is empty or unknown.
pub fn tidy(value: &mut Value) {
    let Value::Object(metadata) = &mut value["metadata"] else {
        value["metadata"] = json!({});
        return;
    };
    let is_empty = |value: &Value| match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    metadata.retain(|name, value| {
        let name = name.as_str();
        KNOWN.contains(&name) && !value.is_null() && !(OPTIONAL.contains(&name) && is_empty(value))
    });
}

/// Sets what the server gives a new object, and checks the rest.
pub fn begin(
    kind: Kind,
    namespace: &str,
    value: &mut Value,
    now: &str,
    sequence: &mut Sequence,
) -> Result<(), Failure> {
    tidy(value);
    place(kind, namespace, value)?;
    let metadata = &mut value["metadata"];
    if let Some(version) = metadata["resourceVersion"].as_str().filter(|version| !version.is_empty()) {
        let message = format!("resourceVersion should not be set on objects to be created: {version}");
        return Err(Failure::bad_request(&message));
    }
    if metadata["name"].as_str().unwrap_or_default().is_empty()
        && let Some(prefix) = metadata["generateName"].as_str()
    {
        metadata["name"] = format!("{prefix}{}", sequence.suffix()).into();
    }
    metadata["uid"] = sequence.uid().into();
    metadata["creationTimestamp"] = now.into();
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"] {
        metadata[field] = Value::Null;
    }
    tidy(value);
    Ok(())
}

/// Checks kind and namespace of what a client sent for this path, and completes them. Removes unknown fields.
pub fn place(kind: Kind, namespace: &str, value: &mut Value) -> Result<(), Failure> {
    let found = &mut value["metadata"]["namespace"];
    if found.is_null() && !namespace.is_empty() {
        *found = namespace.into();
    } else if found.as_str().unwrap_or_default() != namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    tidy(value);
    if let Value::Object(fields) = value {
        let is_known = |name: &str| {
            ["apiVersion", "kind", "metadata"].contains(&name) || kind.traits().fields.contains(&name)
        };
        // The status of a custom resource may be null.
        fields.retain(|name, value| is_known(name) && (!value.is_null() || kind == Kind::LeaderGroup));
    }
    for (field, wanted) in [("apiVersion", kind.api_version()), ("kind", kind.traits().name.to_owned())] {
        match value[field].as_str() {
            None | Some("") => value[field] = wanted.into(),
            Some(given) if given == wanted => {}
            Some(given) => {
                let message = format!("{field} {given:?} does not match the expected {wanted:?}");
                return Err(Failure::bad_request(&message));
            }
        }
    }
    Ok(())
}

/// What an update can never change, whatever it says.
pub fn keep(old: &Object, value: &mut Value) {
    let (old, new) = (old.metadata(), &mut value["metadata"]);
    new["generation"] = old["generation"].clone();
    new["creationTimestamp"] = old["creationTimestamp"].clone();
    if new["uid"].as_str().unwrap_or_default().is_empty() {
        new["uid"] = old["uid"].clone();
    }
    if !old["deletionTimestamp"].is_null() {
        new["deletionTimestamp"] = old["deletionTimestamp"].clone();
    }
    if new["deletionGracePeriodSeconds"].is_null() {
        new["deletionGracePeriodSeconds"] = old["deletionGracePeriodSeconds"].clone();
    }
    tidy(value);
}

/// What is wrong with the metadata, and with their change.
pub fn problems(old: Option<&Object>, value: &Value) -> Vec<FieldError> {
    let metadata = &value["metadata"];
    let mut found = Vec::new();
    match metadata["name"].as_str().unwrap_or_default() {
        "" => found.push(FieldError::required("metadata.name", "name or generateName is required")),
        name if !is_subdomain(name) => found.push(FieldError::invalid(
            "metadata.name",
            &metadata["name"],
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'",
        )),
        _ => {}
    }
    for (field, lower) in [("labels", false), ("annotations", true)] {
        let path = format!("metadata.{field}");
        for (key, value) in metadata[field].as_object().into_iter().flatten() {
            // The keys of annotations may have upper case letters in their prefix.
            let key_problem =
                if lower { qualified_name_problem(&key.to_lowercase()) } else { qualified_name_problem(key) };
            if let Some(problem) = key_problem {
                found.push(FieldError::invalid(&path, &key.as_str().into(), problem));
            }
            if !lower && !value.as_str().is_some_and(is_label_value) {
                let problem = "a valid label must be an empty string or consist of alphanumeric characters";
                found.push(FieldError::invalid(&path, value, problem));
            }
        }
    }
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten() {
        if let Some(problem) = finalizer.as_str().and_then(qualified_name_problem) {
            found.push(FieldError::invalid("metadata.finalizers", finalizer, problem));
        }
    }
    if let Some(old) = old {
        changes(old, metadata, &mut found);
    }
    found
}

fn changes(old: &Object, metadata: &Value, found: &mut Vec<FieldError>) {
    let before = old.metadata();
    if old.is_being_deleted() {
        let known = before["finalizers"].as_array();
        let is_new = |name: &&Value| !known.is_some_and(|known| known.contains(name));
        let new: Vec<_> = metadata["finalizers"].as_array().into_iter().flatten().filter(is_new).collect();
        if !new.is_empty() {
            let problem = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {new:?}"
            );
            found.push(FieldError::forbidden("metadata.finalizers", &problem));
        }
    }
    for field in ["name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if metadata[field] != before[field] {
            let path = format!("metadata.{field}");
            found.push(FieldError::invalid(&path, &metadata[field], "field is immutable"));
        }
    }
}
