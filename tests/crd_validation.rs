//! The operator's own validation must agree with the API server's rules on every manifest of `tests/manifests`, and
//! these set every field.

mod manifests;

use std::collections::BTreeSet;

use kube::CustomResourceExt as _;
use leadergroup::api::LeaderGroup;
use serde_json::Value;

/// Errors that only the API server can detect: changes of immutable fields, unknown fields, metadata. And keys that may
/// be those of other groups: the operator refuses them by what it knows of the cluster (`tests/operator/keys.rs`). And
/// long timeouts, which it shortens.
fn is_the_servers_alone(says: &str) -> bool {
    says.contains("immutable")
        || says.starts_with("strict decoding")
        || says.starts_with("metadata.name")
        || says.contains("must not begin with a UID")
        || says.contains("outstanding probes")
}

#[test]
fn what_the_api_server_refuses_the_operator_refuses_too() {
    let mut judged = 0;
    for manifest in manifests::all("invalid") {
        if is_the_servers_alone(&manifest.says) {
            continue;
        }
        judged += 1;
        let last = manifest.documents.last().expect("there is a document").clone();
        if let Ok(group) = serde_json::from_value::<LeaderGroup>(last) {
            let refused = group.spec.validate();
            let text = refused.expect_err(&manifest.name).to_string();
            assert!(text.starts_with("spec.") && !text.contains("  "), "{}: {text}", manifest.name);
        }
    }
    assert!(judged >= 40, "only {judged} manifests were judged");
}

#[test]
fn what_the_api_server_accepts_the_operator_accepts_too() {
    for manifest in manifests::all("valid") {
        // The API server replaces nulls, so the operator never reads them.
        if manifest.name == "nulls" {
            continue;
        }
        for document in manifest.documents {
            let group: LeaderGroup = serde_json::from_value(document).expect(&manifest.name);
            group.spec.validate().expect(&manifest.name);
        }
    }
}

/// The fields of a schema below this path, such as `spec.election.priorities[].weight`.
fn fields_of(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        fields_of(&path, field, found);
        fields_of(&format!("{path}[]"), &field["items"], found);
        found.insert(path);
    }
}

/// The fields that an object sets below this path.
fn fields_in(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    for (name, field) in value.as_object().into_iter().flatten().filter(|(_, field)| !field.is_null()) {
        let path = format!("{path}.{name}");
        fields_in(&path, field, found);
        found.insert(path);
    }
    for item in value.as_array().into_iter().flatten() {
        fields_in(&format!("{path}[]"), item, found);
    }
}

#[test]
fn each_field_of_the_spec_is_set_in_a_valid_manifest() {
    let definition = serde_json::to_value(LeaderGroup::crd()).expect("it serialises");
    let spec = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    let (mut fields, mut set) = (BTreeSet::new(), BTreeSet::new());
    fields_of("spec", spec.expect("there is a schema"), &mut fields);
    assert!(fields.contains("spec.election.priorities[].weight"), "the schema is not understood: {fields:?}");
    for document in manifests::all("valid").iter().flat_map(|manifest| &manifest.documents) {
        fields_in("spec", &document["spec"], &mut set);
    }
    let missing: Vec<_> = fields.difference(&set).collect();
    assert!(missing.is_empty(), "no manifest in tests/manifests/valid sets {missing:?}");
}
