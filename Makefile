# LeaderGroup. `make help` lists the targets.

# Build results are kept outside the source tree, and are shared by clones.
export CARGO_TARGET_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/leadergroup/target

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

E2E := $(CARGO_TARGET_DIR)/debug/leadergroup-e2e
TESTS := $(patsubst tests/%.rs,%,$(wildcard tests/*.rs)) \
  $(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs agent/tests/*/main.rs lock/tests/*/main.rs)) conform)
# With an existing cluster there is no test cluster to test.
E2E_TESTS := $(if $(filter own,$(or $(LEADERGROUP_PROVIDER),own)),--test cluster) --test scenarios
CRD := crds/leadergroups.yaml
CHART := charts/leadergroup

# All targets that run cargo.
demo test check agent linearizable mutants mutants-generated fuzz random-faults simulate nightly cluster cluster-down build-cluster build lint unit e2e chart crd publish-check check-platforms bench bench-lock bench-lock-docs \
  bench-fleet bench-fleet-docs bench-fleet-short bench-failover bench-failover-docs bench-quiet bench-peers docs e2e-build release: | own-target

##@ Demo and tests

.PHONY: demo
demo: root prerequisites e2e-build ## Run the demo: a cluster, planned switchovers, a node that loses power, the agent. KEEP=1 keeps the cluster
	KEEP="$(KEEP)" "$(E2E)" demo

.PHONY: test
test: root prerequisites ## Run everything: formatting, lints, unit, integration, chart and end-to-end tests
	scripts/test.sh

.PHONY: mutants
mutants: build-cluster ## Plant faults in a copy of the sources and see that tests notice each: ONLY=<words> SHARD=0/8; RECORD=1 shows earlier runs
	source scripts/no-cluster.sh; scripts/mutants.py $(if $(RECORD),--record,$(if $(SHARD),--shard $(SHARD)) $(ONLY))

.PHONY: mutants-generated
mutants-generated: ## Make small generated changes to a room's decision code and see that fast tests notice each: ROOM=election SHARD=0/8 DIFF=<file>
	scripts/cargo-mutants.sh run $(or $(ROOM),election) $(if $(SHARD),--shard $(SHARD)) $(if $(DIFF),--in-diff $(abspath $(DIFF)))

.PHONY: fuzz
fuzz: ## Feed the decoders untrusted input, for longer than the tests do: CASES=100000 SEED=<number>
	PROPTEST_CASES=$(or $(CASES),100000) PROPTEST_RNG_SEED=$(or $(SEED),$$RANDOM) \
	  cargo test --workspace --lib --test health -- fuzz:: hostile::

.PHONY: linearizable
linearizable: prerequisites ## Check histories of the lock's clients under faults with porcupine (about five minutes): ROUNDS=16 SEED=1
	cargo build --quiet --workspace --bins
	scripts/linearizable.sh "$(or $(ROUNDS),16)" "$(or $(SEED),1)"

.PHONY: check
check: fmt-check ## Run the fast checks: formatting, lints, unit tests
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	cargo test --workspace --lib --bins --quiet
	scripts/check-files.sh

.PHONY: check-platforms
check-platforms: ## Check that the lock's crate and the plugin build for macOS and Windows, with Zig
	scripts/check-platforms.sh

##@ Test cluster

.PHONY: cluster
cluster: root prerequisites e2e-build agent ## Start the test cluster and print how to configure kubectl for it
	"$(E2E)" build
	"$(E2E)" up --operator "$(CARGO_TARGET_DIR)/debug/leadergroup" --agent "$(AGENT)"
	@echo
	@echo 'The lines above configure kubectl for the cluster; `eval "$$($(E2E) env)"` runs them.'
	@echo 'The nodes have the images of the operator, the agent (ghcr.io/leadergroup/leadergroup-agent:0.1.0), busybox and'
	@echo 'PostgreSQL, and leadergroup/supervised:test: busybox with the agent. To install the operator:'
	@echo '  helm install leadergroup $(CHART) --namespace leadergroup --create-namespace \'
	@echo '    --set postgresql.image.tag=15 --wait'
	@echo '`make cluster-down` stops the cluster.'

.PHONY: cluster-down
cluster-down: e2e-build ## Stop the test cluster and remove everything it created
	"$(E2E)" down

.PHONY: build-cluster
build-cluster: prerequisites e2e-build ## Build the test cluster's programs (once; several minutes)
	"$(E2E)" build

##@ Releases

.PHONY: release
release: ## Make everything that a release consists of, in dist: PLATFORMS="amd64 arm64" REGISTRY=ghcr.io/leadergroup
	PLATFORMS="$(PLATFORMS)" REGISTRY="$(REGISTRY)" scripts/release.sh

.PHONY: release-test-registry
release-test-registry: ## Push what `make release` has made to a registry on this machine, pull it, and compare
	scripts/release/test-registry.sh

.PHONY: release-test
release-test: root prerequisites release-test-registry e2e-build ## The same, and install the release on the test cluster
	"$(E2E)" build
	scripts/release/test-cluster.sh

.PHONY: containerfile
containerfile: root ## Build the images of the Containerfile without a registry, and run them; FULL=1 with optimisations
	FULL="$(FULL)" scripts/release/test-containerfile.sh

.PHONY: publish-check
publish-check: ## Package the lock's crate as it would be published, and build it from the package
	cargo publish --dry-run --locked --allow-dirty --package leadergroup-lock

.PHONY: semver
semver: ## Compare the public face of the lock's crate with that of the last release, or of BASELINE=<revision>
	scripts/semver.sh $(BASELINE)

.PHONY: release-push
release-push: # Push the images and the chart
	scripts/release/push.sh "$(or $(REGISTRY),ghcr.io/leadergroup)"

.PHONY: release-sign
release-sign: # Sign what was pushed, and SHA256SUMS
	scripts/release/sign.sh

##@ Single steps

.PHONY: build
build: ## Build the operator
	cargo build --workspace --bins

# The target is named so that build scripts and macros, which cannot be static, do not get the flag.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
AGENT = $(CARGO_TARGET_DIR)/$(HOST)/agent/leadergroup-agent
.PHONY: agent
agent: ## Build the agent as one small static program, and print where it is
	RUSTFLAGS='-C target-feature=+crt-static' cargo build --profile agent -p leadergroup-agent --target $(HOST)
	@! readelf --dynamic $(AGENT) | grep NEEDED || { echo 'error: the agent is not static' >&2; exit 1; }
	@echo $(AGENT)

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: fmt-check
fmt-check: # Fail if `make fmt` would change something
	cargo fmt --all --check

.PHONY: lint
lint: fmt-check ## Check formatting, clippy, shell scripts, and links and line lengths of the documents
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/check-files.sh

.PHONY: unit
unit: build-cluster ## Run unit and integration tests that need no running cluster
	((EUID == 0)) || { export LEADERGROUP_TEST_WITHOUT_ROOT=1; echo 'Without root, the tests of a full disk are skipped.'; }; \
	  cargo test --workspace --lib --bins $(foreach test,$(TESTS),--test $(test))

.PHONY: e2e
e2e: root prerequisites e2e-build ## Run the end-to-end tests; SCENARIO=<name> runs those whose name contains it
	[[ "$${LEADERGROUP_PROVIDER:-own}" != own ]] || "$(E2E)" build
	[[ -z "$(SCENARIO)" ]] || \
	  cargo test --quiet --workspace $(E2E_TESTS) -- --list $(SCENARIO) | grep ': test$$' || \
	  { echo 'error: no end-to-end test has a name that contains $(SCENARIO)' >&2; exit 1; }
	cargo test --workspace $(E2E_TESTS) -- $(SCENARIO)

.PHONY: random-faults
random-faults: root prerequisites e2e-build ## Random faults, two at a time: MINUTES=60 GROUPS=20 SEED=<number>
	LEADERGROUP_FAULTS_MINUTES="$(MINUTES)" LEADERGROUP_FAULTS_GROUPS="$(GROUPS)" LEADERGROUP_FAULTS_SEED="$(SEED)" \
	  $(MAKE) e2e SCENARIO=random_faults

.PHONY: simulate
simulate: prerequisites ## The whole operator under simulation: SEEDS=100 runs with faults, from SEED=1 on
	LEADERGROUP_CLUSTER_SEED="$(or $(SEED),1)" LEADERGROUP_CLUSTER_SEEDS="$(or $(SEEDS),100)" \
	  cargo test --workspace --profile bench --test simulated_cluster random_faults -- --nocapture

.PHONY: nightly
nightly: root build-cluster ## The long tests, and one page about them: MINUTES=60 of random faults, GROUPS=20, NIGHT=<number>
	MINUTES="$(MINUTES)" FAULT_GROUPS="$(GROUPS)" NIGHT="$(NIGHT)" scripts/nightly.sh

.PHONY: dependencies
dependencies: ## Check licenses, banned crates and sources of the dependencies with cargo-deny (built once; several minutes)
	scripts/cargo-deny.sh check bans licenses sources

.PHONY: advisories
advisories: ## Check the dependencies against the RustSec database, which it fetches from GitHub
	scripts/cargo-deny.sh check advisories

.PHONY: links
links: ## Check the relative links and anchors of the documents
	scripts/check-links.sh

.PHONY: chart
chart: e2e-build ## Lint and test the chart
	"$(E2E)" build
	scripts/test-chart.sh

.PHONY: site
site: ## Build the site from the documents into dist/site, and check its links
	scripts/site.sh

.PHONY: crd
crd: ## Generate the CRD from the types, here and in the chart
	cargo build --quiet --workspace --bins
	"$(CARGO_TARGET_DIR)/debug/leadergroup" crd >"$(CRD).new"
	mv "$(CRD).new" "$(CRD)"
	cp "$(CRD)" "$(CHART)/crd-files/"

.PHONY: reference
reference: ## Generate docs/reference.md: the fields, settings and metrics
	UPDATE=1 cargo test --workspace --test reference

.PHONY: chart-readme
chart-readme: ## Generate the table of values in the chart's README
	scripts/chart-readme.sh

.PHONY: bench
bench: ## Benchmarks
	cargo bench --workspace --bench election --bench prober
	cargo test --workspace --profile bench --lib controller::tests::measurements -- --ignored --nocapture

# The temporary directory holds the server's data. It must be on a disk, so that commits have their real cost.
.PHONY: bench-lock
bench-lock: prerequisites ## Compare the lock with alternatives; ONLY=<subjects>, LEADERGROUP_BENCH_SECONDS=1 for a short run
	TMPDIR="$${TMPDIR:-/var/tmp}" cargo bench --workspace --bench lock -- $(ONLY)

.PHONY: bench-lock-docs
bench-lock-docs: prerequisites # The same, and write the pictures of docs/benchmarks.md
	LEADERGROUP_BENCH_IMAGES="$(CURDIR)/docs/images" TMPDIR="$${TMPDIR:-/var/tmp}" \
	  cargo bench --workspace --bench lock

.PHONY: bench-fleet
bench-fleet: root build-cluster ## Two replicas with GROUPS=1000 groups: cost and speed; ONLY=<subjects>, PROBES=0 for pods without probes
	LEADERGROUP_BENCH_GROUPS="$(GROUPS)" LEADERGROUP_BENCH_PROBES="$(PROBES)" TMPDIR="$${TMPDIR:-/var/tmp}" \
	  cargo bench --workspace --profile release --bench fleet -- $(ONLY)

.PHONY: bench-fleet-docs
bench-fleet-docs: root build-cluster # The same, and the pictures of docs/benchmarks.md
	LEADERGROUP_BENCH_IMAGES="$(CURDIR)/docs/images" LEADERGROUP_BENCH_GROUPS="$(GROUPS)" \
	  TMPDIR="$${TMPDIR:-/var/tmp}" cargo bench --workspace --profile release --bench fleet

.PHONY: bench-fleet-short
bench-fleet-short: root build-cluster ## The same within a minute, with few groups: fails if something is wrong, not if it is slow
	LEADERGROUP_BENCH_GROUPS="$(GROUPS)" cargo test --workspace --bench fleet

.PHONY: bench-failover
bench-failover: root build-cluster ## What clients notice of a failover, beside alternatives: ROUNDS=30 (an hour and a half), ONLY=<changes and candidates>; ONLY=database_lost, alone: the loss of the database, ROUNDS=4
ifeq ($(ONLY),database_lost)
	LEADERGROUP_DATABASE_ROUNDS="$(or $(ROUNDS),4)" $(MAKE) e2e SCENARIO=database_lost
else
	cargo build --workspace --bins --profile bench
	LEADERGROUP_BENCH_ROUNDS="$(ROUNDS)" cargo bench --workspace --bench failover -- $(ONLY)
endif

.PHONY: bench-failover-docs
bench-failover-docs: root build-cluster # The same, and the tables and pictures of README.md and docs/benchmarks.md
	cargo build --workspace --bins --profile bench
	LEADERGROUP_BENCH_ROUNDS="$(ROUNDS)" LEADERGROUP_BENCH_IMAGES="$(CURDIR)/docs/images" \
	  cargo bench --workspace --bench failover
	scripts/failover-tables.py "$(CARGO_TARGET_DIR)/bench/failover.json"

.PHONY: bench-power-off-docs
bench-power-off-docs: root build-cluster # The power-offs of the operator's groups alone, and their table in docs/benchmarks.md
	cargo build --workspace --bins --profile bench
	LEADERGROUP_BENCH_ROUNDS="$(ROUNDS)" cargo bench --workspace --bench failover -- power-off managed selector
	scripts/failover-tables.py "$(CARGO_TARGET_DIR)/bench/failover-part.json" owners

.PHONY: bench-peers
# The figures are of tenths of a second, and the build of the tests is enough.
bench-peers: root build-cluster ## For how long no program runs, with the agent and with client-go: ROUNDS=4 (seven minutes)
	LEADERGROUP_BENCH_ROUNDS="$(ROUNDS)" cargo bench --workspace --profile dev --bench peers

.PHONY: bench-peers-docs
bench-peers-docs: bench-peers # The same, and its table in docs/benchmarks.md
	scripts/failover-tables.py "$(CARGO_TARGET_DIR)/bench/peers.json" peers

.PHONY: bench-quiet
bench-quiet: root build-cluster ## Look for false failovers with short ttls while a compiler keeps all cores busy: MINUTES=30
	cargo build --workspace --bins --profile bench
	LEADERGROUP_BENCH_MINUTES="$(MINUTES)" cargo bench --workspace --bench failover -- quiet

.PHONY: docs
docs: ## Build the library's documentation
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --lib --document-private-items -p leadergroup -p leadergroup-lock
	@echo "open $(CARGO_TARGET_DIR)/doc/leadergroup/index.html"

.PHONY: root
root: # Fail early, not after the build
	@((EUID == 0)) || [[ "$${LEADERGROUP_PROVIDER:-own}" != own ]] || { echo "error: the test cluster makes network namespaces and cgroups and needs root: sudo make $(MAKECMDGOALS)" \
	  "(make check and make unit do not)" >&2; exit 1; }

.PHONY: prerequisites
prerequisites: ## Install missing Debian packages that the tests need
	@scripts/prerequisites.sh

.PHONY: own-target
own-target: # Remove build results of other checkouts
	@scripts/own-target.sh

.PHONY: e2e-build
e2e-build: # Build the test cluster's own command
	@echo "==> building the operator and the test cluster's command into $(CARGO_TARGET_DIR)"
	cargo build --workspace

.PHONY: help
help: ## Print this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  make %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
