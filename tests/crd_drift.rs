//! The committed manifest must be identical to the output of the program.

use std::path::Path;

#[test]
fn the_committed_definitions_are_the_one_the_program_prints() {
    // The chart has its own copy, because Helm reads no files outside the chart.
    for file in ["crds/leadergroups.yaml", "charts/leadergroup/crd-files/leadergroups.yaml"] {
        let committed =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
        assert!(committed == leadergroup::cli::crd_yaml(), "{file} is out of date; run `make crd`");
    }
}
