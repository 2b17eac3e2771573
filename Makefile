# LeaderGroup. `make help` lists what can be done here.

# What is built stays outside the source tree, and is kept between clones and runs.
export CARGO_TARGET_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/leadergroup/target

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

E2E := $(CARGO_TARGET_DIR)/debug/leadergroup-e2e
TESTS := $(patsubst tests/%.rs,%,$(wildcard tests/*.rs)) \
  $(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs lock/tests/*/main.rs)))
# On somebody's cluster there is none of our own to test.
E2E_TESTS := $(if $(filter own,$(or $(LEADERGROUP_PROVIDER),own)),--test cluster) --test scenarios
CRD := crds/leadergroups.yaml
CHART := charts/leadergroup

# Whatever runs cargo.
demo test check cluster cluster-down build-cluster build lint unit e2e chart crd bench bench-lock bench-lock-docs \
  bench-fleet bench-fleet-docs bench-fleet-short docs e2e-build: | own-target

##@ Try it and test it

.PHONY: demo
demo: root prerequisites e2e-build ## See it live: a cluster, a node that loses power, the failover. KEEP=1 leaves the cluster up
	KEEP="$(KEEP)" "$(E2E)" demo

.PHONY: test
test: root prerequisites ## Everything: formats, lints, unit, integration, chart and end-to-end tests
	scripts/test.sh

.PHONY: check
check: fmt-check ## The fast loop: formats, lints, unit tests
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	cargo test --workspace --lib --bins --quiet
	scripts/check-files.sh

##@ A cluster to play with

.PHONY: cluster
cluster: root prerequisites e2e-build ## Start the test cluster and print how to point kubectl at it
	"$(E2E)" build
	"$(E2E)" up --operator "$(CARGO_TARGET_DIR)/debug/leadergroup"
	@echo
	@echo 'The lines above point kubectl at the cluster; `eval "$$($(E2E) env)"` prints them again and runs them.'
	@echo 'The nodes have the images of the operator, busybox and PostgreSQL. To install the operator:'
	@echo '  helm install leadergroup $(CHART) --namespace leadergroup --create-namespace \'
	@echo '    --set postgresql.image.tag=15 --wait'
	@echo '`make cluster-down` takes the cluster down.'

.PHONY: cluster-down
cluster-down: e2e-build ## Stop the test cluster and remove all that it left
	"$(E2E)" down

.PHONY: build-cluster
build-cluster: prerequisites e2e-build ## Build the test cluster's programs (once; several minutes)
	"$(E2E)" build

##@ Parts

.PHONY: build
build: ## Build the operator
	cargo build

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: fmt-check
fmt-check: # Fail where `make fmt` would change something
	cargo fmt --all --check

.PHONY: lint
lint: fmt-check ## Formats, clippy, shell scripts, links and line lengths of the documents
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/check-files.sh

.PHONY: unit
unit: build-cluster ## Unit and integration tests that need no running cluster
	cargo test --workspace --lib --bins $(foreach test,$(TESTS),--test $(test))

.PHONY: e2e
e2e: root prerequisites e2e-build ## End-to-end tests alone; SCENARIO=<name> runs those whose name contains it
	[[ "$${LEADERGROUP_PROVIDER:-own}" != own ]] || "$(E2E)" build
	[[ -z "$(SCENARIO)" ]] || \
	  cargo test --quiet --workspace $(E2E_TESTS) -- --list $(SCENARIO) | grep ': test$$' || \
	  { echo 'error: no end-to-end test has a name that contains $(SCENARIO)' >&2; exit 1; }
	cargo test --workspace $(E2E_TESTS) -- $(SCENARIO)

.PHONY: chart
chart: e2e-build ## Lint the chart and compare what it renders with what it should
	"$(E2E)" build
	scripts/test-chart.sh

.PHONY: crd
crd: ## Write the CRD anew from the types, here and in the chart
	cargo run --quiet -- crd >"$(CRD).new"
	mv "$(CRD).new" "$(CRD)"
	cp "$(CRD)" "$(CHART)/crd-files/"

.PHONY: chart-readme
chart-readme: ## Write the table of values in the chart's README anew
	scripts/chart-readme.sh

.PHONY: bench
bench: ## Benchmarks
	cargo bench --workspace --bench election

# The temporary directory holds the server's data: on a disk, where a commit costs what it costs.
.PHONY: bench-lock
bench-lock: prerequisites ## The lock beside its rivals; ONLY=<subjects>, LEADERGROUP_BENCH_SECONDS=1 for a short run
	TMPDIR="$${TMPDIR:-/var/tmp}" cargo bench --workspace --bench lock -- $(ONLY)

.PHONY: bench-lock-docs
bench-lock-docs: prerequisites # The same, and the pictures of docs/benchmarks.md
	LEADERGROUP_BENCH_IMAGES="$(CURDIR)/docs/images" TMPDIR="$${TMPDIR:-/var/tmp}" \
	  cargo bench --workspace --bench lock

.PHONY: bench-fleet
bench-fleet: root build-cluster ## Two replicas with GROUPS=1000 groups: cost and speed; ONLY=<subjects>, PROBES=0 for pods without probes
	LEADERGROUP_BENCH_GROUPS="$(GROUPS)" LEADERGROUP_BENCH_PROBES="$(PROBES)" TMPDIR="$${TMPDIR:-/var/tmp}" \
	  cargo bench --profile release --bench fleet -- $(ONLY)

.PHONY: bench-fleet-docs
bench-fleet-docs: root build-cluster # The same, and the pictures of docs/benchmarks.md
	LEADERGROUP_BENCH_IMAGES="$(CURDIR)/docs/images" LEADERGROUP_BENCH_GROUPS="$(GROUPS)" \
	  TMPDIR="$${TMPDIR:-/var/tmp}" cargo bench --profile release --bench fleet

.PHONY: bench-fleet-short
bench-fleet-short: root build-cluster ## The same within a minute, with few groups: fails if something is wrong, not if it is slow
	LEADERGROUP_BENCH_GROUPS="$(GROUPS)" cargo test --workspace --bench fleet

.PHONY: docs
docs: ## Build the library's documentation
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --lib --document-private-items -p leadergroup -p leadergroup-lock
	@echo "open $(CARGO_TARGET_DIR)/doc/leadergroup/index.html"

.PHONY: root
root: # Fail early, not after the build
	@((EUID == 0)) || [[ "$${LEADERGROUP_PROVIDER:-own}" != own ]] || { echo "error: the test cluster makes network namespaces and cgroups and needs root: sudo make $(MAKECMDGOALS)" \
	  "(make check and make unit do not)" >&2; exit 1; }

.PHONY: prerequisites
prerequisites: ## Install the Debian packages that tests need, where missing
	@scripts/prerequisites.sh

.PHONY: own-target
own-target: # Nothing that another checkout built is taken for this one's
	@scripts/own-target.sh

.PHONY: e2e-build
e2e-build: # Build the test cluster's own command
	@echo "==> building the operator and the test cluster's command into $(CARGO_TARGET_DIR)"
	cargo build --workspace

.PHONY: help
help: ## This list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
