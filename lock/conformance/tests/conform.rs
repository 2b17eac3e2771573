//! The clients of this repository keep all rules, and each broken client is named by the rule that it breaks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use leadergroup_lock_conformance::{Settings, conform};

const RUST: &str = env!("CARGO_BIN_EXE_leadergroup-lock-rust-client");

const PYTHON: &[&str] =
    &["/usr/bin/python3", concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/python/lock.py")];

fn settings(clients: &[&[&str]]) -> Settings {
    let clients =
        clients.iter().map(|client| client.iter().map(|&part| part.to_owned()).collect()).collect();
    let only = std::env::var("ONLY").map(|words| words.split(',').map(str::to_owned).collect());
    Settings { clients, only: only.unwrap_or_default(), trace: true, ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_keeps_all_rules() {
    let report = conform(settings(&[&[RUST]])).await.unwrap();
    assert!(report.is_clean(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_keeps_all_rules() {
    let report = conform(settings(&[PYTHON])).await.unwrap();
    assert!(report.is_clean(), "{report}");
}
