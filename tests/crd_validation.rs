//! The operator's own validation must agree with the API server's rules on every manifest of `tests/manifests`.

mod manifests;

use leadergroup::api::LeaderGroup;

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
