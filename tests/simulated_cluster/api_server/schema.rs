//! The structural schema of the CRD: what is pruned, what gets a default, and what is invalid.
//!
//! CEL rules (`x-kubernetes-validations`) are not evaluated, so the server stores groups that the real one refuses
//! for them.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::failure::FieldError;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let manifest = include_str!("../../../crds/leadergroups.yaml");
    let definition: Value = serde_saphyr::from_str(manifest).expect("the CRD is YAML");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
});

/// Removes what the schema does not name within spec and status, and adds defaults.
pub fn complete(object: &mut Value) {
    for field in ["spec", "status"] {
        let schema = &SCHEMA["properties"][field];
        if let Some(value) = object.get_mut(field) {
            prune(value, schema);
        }
        add_default(object, field, schema);
    }
    if let Value::Object(fields) = object {
        fields
            .retain(|name, _| ["apiVersion", "kind", "metadata", "spec", "status"].contains(&name.as_str()));
    }
}

/// What is wrong with a group.
pub fn problems(object: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    if object.get("spec").is_none() {
        found.push(FieldError::required("spec", ""));
    }
    for field in ["spec", "status"] {
        if let Some(value) = object.get(field) {
            check(value, &SCHEMA["properties"][field], field, &mut found);
        }
    }
    found
}

fn prune(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let (properties, additional) = (schema.get("properties"), schema.get("additionalProperties"));
            if properties.is_none() && additional.is_none() {
                return;
            }
            fields.retain(|name, _| {
                additional.is_some() || properties.is_some_and(|all| all.get(name).is_some())
            });
            for (name, value) in fields {
                if let Some(schema) = properties.and_then(|all| all.get(name)).or(additional) {
                    prune(value, schema);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                prune(item, &schema["items"]);
            }
        }
        _ => {}
    }
}

/// A field that is missing, or is null and may not be, gets its default. Without one it is removed.
fn add_default(object: &mut Value, field: &str, schema: &Value) {
    let Value::Object(fields) = object else { return };
    let is_missing = match fields.get(field) {
        None => true,
        Some(Value::Null) => schema["nullable"] != true,
        Some(_) => false,
    };
    if is_missing {
        match schema.get("default") {
            Some(default) => drop(fields.insert(field.to_owned(), default.clone())),
            None => drop(fields.remove(field)),
        }
    }
    if let Some(value) = fields.get_mut(field) {
        add_defaults(value, schema);
    }
}

fn add_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(schema) = schema.get("additionalProperties") {
                fields.retain(|_, value| !value.is_null() || schema["nullable"] == true);
            }
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                add_default(value, name, schema);
            }
        }
        Value::Array(items) => {
            for item in items {
                add_defaults(item, &schema["items"]);
            }
        }
        _ => {}
    }
}

fn check(value: &Value, schema: &Value, path: &str, found: &mut Vec<FieldError>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    let mut refuse = |problem: &str| found.push(FieldError::invalid(path, value, problem));
    if let Some(wanted) = schema["type"].as_str()
        && !is_of_type(value, wanted)
    {
        return refuse(&format!("{path} in body must be of type {wanted}: {:?}", type_of(value)));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        refuse("Unsupported value");
    }
    if let Some(number) = value.as_f64() {
        let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
        if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
            refuse(&format!("{path} in body should be within its limits"));
        }
    }
    let is_longer =
        |length: usize, limit: &str| schema[limit].as_u64().is_some_and(|most| length as u64 > most);
    match value {
        Value::String(text) if is_longer(text.chars().count(), "maxLength") => refuse("Too long"),
        Value::Array(items) => {
            if is_longer(items.len(), "maxItems") {
                refuse("Too many");
            }
            for (index, item) in items.iter().enumerate() {
                check(item, &schema["items"], &format!("{path}[{index}]"), found);
            }
        }
        Value::Object(fields) => {
            if is_longer(fields.len(), "maxProperties") {
                refuse("Too many");
            }
            check_fields(fields, schema, path, found);
        }
        _ => {}
    }
}

fn check_fields(fields: &Map<String, Value>, schema: &Value, path: &str, found: &mut Vec<FieldError>) {
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(required) {
            found.push(FieldError::required(&format!("{path}.{required}"), ""));
        }
    }
    for (name, value) in fields {
        let schema = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        if let Some(schema) = schema {
            check(value, schema, &format!("{path}.{name}"), found);
        }
    }
}

fn is_of_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => type_of(value) == other,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
