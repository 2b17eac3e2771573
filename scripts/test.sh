#!/usr/bin/env bash
# The whole test, cheapest first: what fails soonest fails first. The end-to-end tests come last, so that cargo's own
# closing lines are the last thing to be seen.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO_TARGET_DIR:?run this through make test}"

e2e=$CARGO_TARGET_DIR/debug/leadergroup-e2e
step() { printf '\n==> [%3d s] %s\n' "$SECONDS" "$*"; }

# What runs beside the rest has a session of its own: one signal reaches all of it, and nothing else.
logs=$(mktemp -d)
beside=
finish() {
  [[ -z "$beside" ]] || kill -- "-$beside" 2>/dev/null || true
  rm -rf "$logs"
}
# join <what> <log>: waits for what runs beside, and shows what it printed
join() {
  local tail_pid status=0
  tail -n +1 -f --pid="$beside" "$2" &
  tail_pid=$!
  wait "$beside" || status=$?
  wait "$tail_pid" || true
  beside=
  ((status == 0)) || { echo "error: $1 failed; the output is above" >&2; exit "$status"; }
}
trap finish EXIT
trap 'exit 130' INT TERM

step "format"
cargo fmt --all --check
scripts/check-files.sh

step "build"
cargo build --workspace

step "the test cluster's programs: building in the background"
setsid nice -n 5 "$e2e" build >"$logs/cluster" 2>&1 &
beside=$!

step "clippy"
cargo clippy --workspace --all-targets -- -D warnings

step "documentation of the code"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --lib --document-private-items

step "the committed CRD is what the types say"
"$CARGO_TARGET_DIR/debug/leadergroup" crd | diff -u crds/leadergroups.yaml - ||
  { echo "error: crds/leadergroups.yaml is out of date; run: make crd" >&2; exit 1; }

step "building the tests"
# Always the whole workspace, so that every step has the same features of the dependencies, and none is built twice.
with_postgres=(lock faults exec lock_cli migrate)
others=(--lib --bins)
for path in tests/*.rs tests/*/main.rs; do
  name=${path#tests/}
  name=${name%/main.rs}
  name=${name%.rs}
  [[ " ${with_postgres[*]} " == *" $name "* ]] || others+=("--test=$name")
done
cargo test --workspace --no-run

step "the test cluster's programs: waiting for the build"
join "building the test cluster's programs" "$logs/cluster"

# Nearly all tests wait most of the time: for servers, and for leases to end. So those that need PostgreSQL alone run
# beside those that need an API server, and the first of the end-to-end tests.
export RUST_TEST_THREADS=4
step "tests with PostgreSQL: in the background"
setsid cargo test --workspace --no-fail-fast "${with_postgres[@]/#/--test=}" >"$logs/postgres" 2>&1 &
beside=$!

step "unit and integration tests"
cargo test --workspace "${others[@]}"
cargo test --workspace --doc

step "chart"
scripts/test-chart.sh

step "end to end: the cluster"
cargo test --workspace --test cluster

step "tests with PostgreSQL: waiting for them"
join "tests with PostgreSQL" "$logs/postgres"

step "end to end: the scenarios"
cargo test --workspace --test scenarios
