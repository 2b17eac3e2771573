//! The dependencies that a program gets with this crate: no Kubernetes, and no HTTP.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::Command;

const UNWANTED: [&str; 6] = ["kube", "k8s-openapi", "hyper", "axum", "sqlx-mysql", "sqlx-sqlite"];

/// The names of the crates that programs are built with, with all features of this one.
fn dependencies() -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--package", "leadergroup-lock", "--all-features", "--edges", "normal"])
        .args(["--target", "all", "--prefix", "none", "--format", "{p}", "--locked"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_lock_stays_light() {
    let dependencies = dependencies();
    assert!(dependencies.contains("sqlx") && dependencies.contains("tokio"), "no tree: {dependencies:?}");
    let unwanted: Vec<_> = UNWANTED.into_iter().filter(|&name| dependencies.contains(name)).collect();
    assert!(
        unwanted.is_empty(),
        "leadergroup-lock depends on {unwanted:?}; see cargo tree -e normal -i <name>"
    );
}
