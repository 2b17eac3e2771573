//! The committed manifest is the one that the program prints.

use std::path::Path;

#[test]
fn the_committed_definitions_are_the_one_the_program_prints() {
    // The chart packs its own copy: Helm reads nothing outside a chart.
    for file in ["crds/leadergroups.yaml", "charts/leadergroup/crd-files/leadergroups.yaml"] {
        let committed =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
        assert!(committed == leadergroup::cli::crd_yaml(), "{file} is out of date; run `make crd`");
    }
}
