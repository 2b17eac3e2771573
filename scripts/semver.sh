#!/usr/bin/env bash
# Compares the public face of the lock's crate with that of a release, by a pinned cargo-semver-checks that is built
# once into the cache. Fails if a change needs a larger step of the version than Cargo.toml has.
#   scripts/semver.sh [revision]    the default is the last tag of a release
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/cargo-tool.sh
cargo_tool cargo-semver-checks 0.51.0

baseline=${1:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)}
[[ -n "$baseline" ]] || { echo "error: there is no release to compare with; name a revision" >&2; exit 2; }
build_tool
"$program" semver-checks --package leadergroup-lock --all-features --baseline-rev "$baseline"
