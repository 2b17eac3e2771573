#!/usr/bin/env bash
# Runs all tests, the cheapest first.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO_TARGET_DIR:?run this through make test}"
source scripts/no-cluster.sh

e2e=$CARGO_TARGET_DIR/debug/leadergroup-e2e
step() { printf '\n==> [%3d s] %s\n' "$SECONDS" "$*"; }

source scripts/sessions.sh

# A server that can no longer write ends, and tests fail in ways that do not name the disk.
free=$(df --output=avail --block-size=1G "$CARGO_TARGET_DIR" | tail -n 1)
((free >= 20)) || echo "warning: only $free GB of disk space are left; a first run needs about 20 GB"

step "format"
cargo fmt --all --check
scripts/check-files.sh

step "build"
# This must be first: everything is tested with the Cargo.lock that it checks.
cargo build --workspace --locked

step "the test cluster's programs: building in the background"
beside "the build of the test cluster's programs" 5 "$e2e" build
beside "the build of cargo-deny" 10 scripts/cargo-deny.sh build
beside "the build of mdBook" 10 scripts/site.sh build

step "clippy"
cargo clippy --workspace --all-targets --all-features -- -D warnings
# As others build them: without the features that the workspace turns on.
cargo clippy -p leadergroup-lock -p leadergroup-agent --no-default-features -- -D warnings
cargo clippy -p leadergroup --no-default-features --features plugin --lib --bin kubectl-leadergroup -- -D warnings
cargo clippy -p leadergroup --no-default-features --features operator --lib --bin leadergroup -- -D warnings

step "documentation of the code"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --lib --document-private-items
# As docs.rs builds it.
RUSTDOCFLAGS="-D warnings" cargo doc -p leadergroup-lock --no-deps --features memory,prometheus-client

step "the committed CRD is what the types say"
"$CARGO_TARGET_DIR/debug/leadergroup" crd | diff -u crds/leadergroups.yaml - ||
  { echo "error: crds/leadergroups.yaml is out of date; run: make crd" >&2; exit 1; }

step "building the tests"
# Always the whole workspace, so that all steps use the same features of the dependencies and nothing is built twice.
with_postgres=(blocking conform faults exec lock lock_cli memory migrate prometheus)
others=(--lib --bins)
shopt -s nullglob
for path in {,agent/,lock/,lock/conformance/}tests/{*.rs,*/main.rs}; do
  name=${path#*tests/}
  name=${name%/main.rs}
  name=${name%.rs}
  [[ " ${with_postgres[*]} operator simulation " == *" $name "* ]] || others+=("--test=$name")
done
shopt -u nullglob
cargo test --workspace --no-run

step "the test cluster's programs: waiting for the build"
join "the build of the test cluster's programs"

# Most tests wait most of the time, for servers and for leases to end. The end-to-end tests wait longest, and their times
# are judged. So all others run beside them and give way. The simulation only computes; it gets the remaining CPU time.
step "in the background: the end-to-end tests, the simulation"
beside "end to end" 0 \
  bash -euo pipefail -c 'for test in cluster scenarios; do cargo test --workspace --test "$test"; done'
beside "the simulation" 19 cargo test --workspace --test simulation

step "unit and integration tests"
apart "the unit and integration tests" 10 env RUST_TEST_THREADS=4 cargo test --workspace "${others[@]}"
apart "the examples in the documentation" 10 cargo test --workspace --doc

step "the model of the lock's histories"
go -C lock/conformance/linearizable test ./...

step "chart"
apart "the chart" 10 scripts/test-chart.sh

step "dependencies: licenses, banned crates, sources"
join "the build of cargo-deny"
scripts/cargo-deny.sh check bans licenses sources
join "the build of mdBook"
scripts/site.sh

# Scenarios that run side by side keep the machine busy. Those that follow have the cluster for themselves and mostly
# wait, for example for a minute without a database.
step "waiting for the scenarios that run side by side, and a minute of quiet"
grep -q '^scenarios with exclusive use' \
  < <(tail -n +1 -f --pid="${sessions[end to end]}" "$logs/end to end") || true

step "tests with PostgreSQL"
apart "the tests with PostgreSQL" 10 env RUST_TEST_THREADS=4 cargo test --workspace "${with_postgres[@]/#/--test=}"

step "tests of the operator"
# Each of these tests has its own operator, and mostly waits for it.
apart "the tests of the operator" 10 env RUST_TEST_THREADS=8 cargo test --workspace --test operator

step "a small fleet"
apart "the fleet" 10 cargo test --workspace --bench fleet

step "the simulation"
join "the simulation"

step "end to end"
join "end to end"
