//! The parts of the CRD's schema that cannot be derived from the Rust types: foreign types, and the default of the
//! status.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// A point in time.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// A port by number or by name. The CEL rules decide which ports are valid.
pub(super) fn port(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 15 })
}

/// Conditions, as a map keyed by type, so that writers of different conditions do not overwrite each other.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string", "description": "type of the condition." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "status of the condition: True, False or Unknown." },
                "reason": { "type": "string", "description": "reason for the condition's last transition, as one CamelCase word." },
                "message": { "type": "string", "description": "message is a human-readable explanation, and what to do about it." },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "description": "lastTransitionTime is the last time the condition's status changed."
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "description": "observedGeneration is the generation of the spec that the condition is based on."
                }
            }
        }
    })
}

/// Adapts a generated schema to what the API server and its users expect:
/// - no `null` for optional fields: the API server then drops a null and uses the default, instead of storing it;
/// - only formats that the API server supports, because it warns about others;
/// - no line breaks of the source in descriptions.
pub(super) fn conform(schema: &mut Schema) {
    if let Some(object) = schema.as_object_mut() {
        conform_object(object);
    }
}

fn conform_object(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(variants)) = object.get_mut("anyOf") {
        variants.retain(|variant| *variant != json!({ "type": "null" }));
        if let [Value::Object(only)] = variants.as_mut_slice() {
            let only = std::mem::take(only);
            object.remove("anyOf");
            object.extend(only);
        }
    }
    if object.get("format").is_some_and(|format| format == "uint32") {
        object.insert("format".to_owned(), "int32".into());
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text =
            text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }
    for (keyword, nested) in object.iter_mut() {
        match (keyword.as_str(), nested) {
            ("properties", Value::Object(properties)) => {
                properties.values_mut().filter_map(Value::as_object_mut).for_each(conform_object);
            }
            ("items" | "additionalProperties", Value::Object(inner)) => conform_object(inner),
            _ => {}
        }
    }
}
