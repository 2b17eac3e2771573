//! Whatever is stored as a group, decoding it does not fail, and the group can still be deleted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use proptest::prelude::*;
use serde_json::Value;

use super::{Sighting, UNREADABLE_LABEL};
use crate::api::LeaderGroupSpec;

#[path = "../../../tests/fuzz/json.rs"]
mod json;

fn decoded(object: &Value) -> Sighting {
    let text = serde_json::to_vec(object).expect("a value is JSON");
    serde_json::from_slice(&text).expect("decoding never fails")
}

fn is_deletable(mut found: Sighting) {
    let _ = (found.declaration(), found.is_without_status());
    if found.meta().deletion_timestamp.is_none() {
        assert_eq!(found.acceptable_spec(), None);
    }
    found.meta_mut().deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    let acceptable = found.acceptable_spec().expect("it is being deleted");
    assert!(acceptable["selector"] != Value::Null, "the API server requires one");
    let Err(unreadable) = found.0 else { return };
    assert!(unreadable.problem.contains(" cannot be read: "), "{}", unreadable.problem);
    let remains = unreadable.remains(None);
    assert_eq!(remains.metadata, unreadable.metadata);
    let labels = [("app", "web"), ("tier", "a"), (UNREADABLE_LABEL, "true")];
    let labels: BTreeMap<_, _> = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    assert!(!remains.spec.selector.matches(&labels), "it selects pods");
    assert!(remains.spec.validate().is_err(), "it can be carried out");
    let known: LeaderGroupSpec =
        serde_json::from_value(serde_json::json!({ "selector": { "matchLabels": { "app": "web" } } }))
            .expect("it is valid");
    assert_eq!(unreadable.remains(Some(&known)).spec.selector, known.selector);
}

#[test]
fn each_group_of_the_corpus_can_be_decoded_and_deleted() {
    let corpus = json::corpus("groups");
    let readable = corpus.iter().filter(|object| decoded(object).0.is_ok()).count();
    assert_eq!((readable, corpus.len()), (2, 3));
    for object in &corpus {
        is_deletable(decoded(object));
    }
}

proptest! {
    #![proptest_config(json::config())]

    #[test]
    fn any_json_can_be_decoded_and_deleted(object in json::any_value()) {
        is_deletable(decoded(&object));
    }

    #[test]
    fn a_group_with_any_spec_and_status_can_be_decoded_and_deleted(
        object in json::altered(json::corpus("groups"), &["spec", "status"]),
    ) {
        let found = decoded(&object);
        // Without them the finalizer could not be removed.
        prop_assert_eq!(found.meta().name.as_deref(), Some("web"));
        prop_assert_eq!(found.meta().finalizers.as_ref().map(Vec::len), Some(1));
        is_deletable(found);
    }
}
