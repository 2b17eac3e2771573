#!/usr/bin/env bash
# The whole test, cheapest first: what fails soonest fails first. The end-to-end tests come last, so that cargo's own
# closing lines are the last thing to be seen.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO_TARGET_DIR:?run this through make test}"

e2e=$CARGO_TARGET_DIR/debug/leadergroup-e2e
step() { printf '\n==> [%3d s] %s\n' "$SECONDS" "$*"; }

cluster_log=$(mktemp)
cluster_build=
finish() {
  # A session of its own: one signal reaches the whole build, and nothing else.
  [[ -z "$cluster_build" ]] || kill -- "-$cluster_build" 2>/dev/null || true
  rm -f "$cluster_log"
}
trap finish EXIT
trap 'exit 130' INT TERM

step "format"
cargo fmt --all --check
scripts/check-files.sh

step "build"
cargo build --workspace

step "the test cluster's programs: building in the background"
setsid nice -n 5 "$e2e" build >"$cluster_log" 2>&1 &
cluster_build=$!

step "clippy"
cargo clippy --workspace --all-targets -- -D warnings

step "documentation of the code"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --lib --document-private-items

step "the committed CRD is what the types say"
"$CARGO_TARGET_DIR/debug/leadergroup" crd | diff -u crds/leadergroups.yaml - ||
  { echo "error: crds/leadergroups.yaml is out of date; run: make crd" >&2; exit 1; }

step "building the tests"
# Always the whole workspace, so that every step has the same features of the dependencies, and none is built twice.
targets=()
for path in tests/*.rs tests/*/main.rs; do
  name=${path#tests/}
  name=${name%/main.rs}
  targets+=(--test "${name%.rs}")
done
cargo test --workspace --no-run

step "the test cluster's programs: waiting for the build"
tail -n +1 -f --pid="$cluster_build" "$cluster_log" &
tail_pid=$!
status=0
wait "$cluster_build" || status=$?
wait "$tail_pid" || true
cluster_build=
((status == 0)) || { echo "error: building the test cluster's programs failed; its output is above" >&2; exit "$status"; }

# Some of them start an API server of the test cluster. Nearly all wait most of the time: for servers, and for leases to end.
step "unit and integration tests"
RUST_TEST_THREADS=4 cargo test --workspace --lib --bins "${targets[@]}"
cargo test --workspace --doc

step "chart"
scripts/test-chart.sh

step "end to end"
cargo test --workspace --test cluster --test scenarios
