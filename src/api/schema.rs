//! The parts of the CRD's schema that cannot be derived from its Rust types.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// A point in time.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// A port by number or by name; which ones are valid is up to the rules.
pub(super) fn port(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 15 })
}

/// Conditions: a map by their type, so that two writers of different conditions do not undo each other's.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string", "description": "What the condition is about." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds." },
                "reason": { "type": "string", "description": "Why, in one CamelCase word." },
                "message": { "type": "string", "description": "Why, and what to do about it, for people." },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "description": "When `status` last changed."
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "description": "The generation of the spec it speaks of."
                }
            }
        }
    })
}

/// Makes the generated schema of a whole part what the API server and its users expect:
/// - no `null` for optional fields: a null is then dropped and replaced by the default, not stored;
/// - only formats that the API server knows, as it warns of others;
/// - descriptions without the line breaks of the source.
pub(super) fn settle(schema: &mut Schema) {
    if let Some(object) = schema.as_object_mut() {
        settle_object(object);
    }
}

fn settle_object(object: &mut Map<String, Value>) {
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
                properties.values_mut().filter_map(Value::as_object_mut).for_each(settle_object);
            }
            ("items" | "additionalProperties", Value::Object(inner)) => settle_object(inner),
            _ => {}
        }
    }
}
