//! The committed manifest must be identical to the output of the program.

use std::path::Path;

use kube::CustomResourceExt as _;
use leadergroup::api::{ConditionType, LeaderGroup};

#[test]
fn the_committed_definitions_are_the_one_the_program_prints() {
    // The chart has its own copy, because Helm reads no files outside the chart.
    for file in ["crds/leadergroups.yaml", "charts/leadergroup/crd-files/leadergroups.yaml"] {
        let committed =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
        assert!(committed == leadergroup::cli::crd_yaml(), "{file} is out of date; run `make crd`");
    }
}

#[test]
fn the_description_of_the_conditions_names_each_type() {
    let definition = serde_json::to_value(LeaderGroup::crd()).expect("it serialises");
    let schema =
        "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions/description";
    let description = definition.pointer(schema).and_then(serde_json::Value::as_str).expect("it is there");
    for condition in ConditionType::ALL {
        assert!(description.contains(condition.name()), "{} is missing: {description}", condition.name());
    }
}
