//! The committed manifest is the one that the program prints.

use std::path::Path;

#[test]
fn the_committed_definition_is_the_one_the_program_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds/leadergroups.yaml");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == leadergroup::cli::crd_yaml(),
        "crds/leadergroups.yaml is out of date; run `cargo run -- crd > crds/leadergroups.yaml`"
    );
}
