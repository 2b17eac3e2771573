//! Whatever a pod's object contains, reading its facts does not fail, and no probe leaves the pod's own address.

use k8s_openapi::api::core::v1::Pod;
use leadergroup::{
    api::{FencingToken, LARGEST_TOKEN, LeaderGroupSpec, Stamp},
    health::{PodFacts, ProbeKind},
};
use proptest::prelude::*;
use serde_json::{Value, json};

#[path = "../fuzz/json.rs"]
mod json_values;

use json_values::{altered, any_value, config, corpus};

fn specs() -> impl Strategy<Value = LeaderGroupSpec> {
    let health = json!({
        "container": "web",
        "probe": {
            "httpGet": { "path": "/", "port": "http", "httpHeaders": [{ "name": "a", "value": "b" }] },
            "timeoutSeconds": 1
        }
    });
    let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "health": health });
    let plain = json!({ "selector": { "matchLabels": { "app": "web" } } });
    altered(vec![spec, plain], &["health"])
        .prop_filter_map("it is no spec", |spec| serde_json::from_value(spec).ok())
}

/// Reads the facts twice, and checks what holds for all pods.
fn check(object: &Value, spec: &LeaderGroupSpec) {
    let Ok(pod) = serde_json::from_value::<Pod>(object.clone()) else { return };
    let facts = PodFacts::from_pod(&pod, spec);
    assert_eq!(facts, PodFacts::from_pod(&pod, spec));
    let _ = (facts.finished(), facts.probe_refusal());
    if let Some(ip) = facts.ip {
        assert!(!ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified(), "{ip}");
    }
    if let Some(stamp) = &facts.stamp {
        assert!(stamp.token >= 0 && !stamp.group.is_empty());
        assert_eq!(stamp.to_string().parse().as_ref(), Ok(stamp));
    }
    if let Ok(Some(probe)) = &facts.probe {
        assert!(probe.port != 0 && !probe.timeout.is_zero(), "{probe:?}");
        if let ProbeKind::HttpGet { path, .. } = &probe.kind {
            assert!(path.as_str().starts_with('/'), "{path}");
        }
    }
}

#[test]
fn each_pod_of_the_corpus_can_be_read() {
    let spec: LeaderGroupSpec =
        serde_json::from_value(json!({ "selector": { "matchLabels": { "app": "web" } } })).unwrap();
    let corpus = corpus("pods");
    for object in &corpus {
        let pod: Pod = serde_json::from_value(object.clone()).unwrap();
        assert!(matches!(PodFacts::from_pod(&pod, &spec).probe, Ok(Some(_))), "{object}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_pod_can_be_read(
        object in altered(corpus("pods"), &["metadata", "spec", "status"]),
        spec in specs(),
    ) {
        check(&object, &spec);
    }

    #[test]
    fn any_object_that_decodes_as_a_pod_can_be_read(object in any_value(), spec in specs()) {
        check(&object, &spec);
    }

    #[test]
    fn a_stamp_survives_the_round_trip(group in "[^/]{1,12}", token in 0..i64::MAX) {
        let stamp = Stamp { group, token };
        prop_assert_eq!(stamp.to_string().parse(), Ok(stamp));
    }

    #[test]
    fn a_fencing_token_survives_the_round_trip(key in ".{1,12}", token in 1..=LARGEST_TOKEN) {
        let fencing = FencingToken { key: &key, token };
        let text = fencing.to_string();
        prop_assert_eq!(FencingToken::parse(&text), Some(fencing));
    }

    /// What is read is written again as it is: no two texts that differ in anything but digits mean the same.
    #[test]
    fn any_text_is_a_stamp_or_refused(text in prop_oneof![any::<String>(), "[a-z/]{0,6}/[+0-9-]{0,22}"]) {
        if let Ok(stamp) = text.parse::<Stamp>() {
            prop_assert!(stamp.token >= 0 && !stamp.group.is_empty());
            prop_assert_eq!(stamp.to_string().parse(), Ok(stamp));
        }
        if let Some(fencing) = FencingToken::parse(&text) {
            prop_assert!(fencing.token > 0 && !fencing.key.is_empty());
            let again = fencing.to_string();
            prop_assert_eq!(FencingToken::parse(&again), Some(fencing));
        }
    }
}
