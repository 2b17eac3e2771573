#!/usr/bin/env bash
# The long tests: new seeds of the simulation and of the lock's models, a shard of the planted faults and of the generated
# changes, new cases of the property tests, what only releases and other platforms need, a long scenario, and random
# faults on the cluster. All steps run even if one fails. Ends with one page about them. A night takes less than two hours.
#
# What needs the cluster runs one after the other, and all other steps run beside it and give way.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO_TARGET_DIR:?run this through make nightly}"
source scripts/no-cluster.sh
source scripts/sessions.sh

# The number of the night chooses seeds and shards: each night does others.
export NIGHT=${NIGHT:-$(($(date +%s) / 86400))}
shards=12
shard=$((NIGHT % shards))/$shards
folder=$CARGO_TARGET_DIR/nightly
failed=0

# step <name> <command...>: its output goes into a file, and its last line into the page
step() {
  local name=$1 began=$SECONDS verdict=passed
  local log=$folder/${name// /-}.log
  shift
  printf '\n==> [%4d s] %s (%s)\n' "$SECONDS" "$name" "$log"
  "$@" >"$log" 2>&1 || { verdict=failed; failed=1; tail -n 20 "$log"; }
  printf '%s\t%s\t%s\t%s\n' "$name" "$verdict" $((SECONDS - began)) "$(grep -v '^$' "$log" | tail -n 1 | tr '\t' ' ')" |
    tee -a "$folder/steps.tsv"
}

if [[ ${1:-} == computing ]]; then
  step "new schedules of the simulation" env LEADERGROUP_SIMULATION_FIRST=$((NIGHT * 1000000)) \
    LEADERGROUP_SIMULATION_TIMES="${TIMES:-20}" cargo test --workspace --test simulation long_random
  step "new runs of the simulated cluster" make simulate SEED=$((NIGHT * 1000)) SEEDS="${SEEDS:-200}"
  step "planted faults" scripts/mutants.py --shard "$shard"
  for room in election health lock operator ownership; do
    step "generated changes of the $room" scripts/cargo-mutants.sh run "$room" --shard $((NIGHT % 96))/96
  done
  step "new sequences of the lock" env LEADERGROUP_MODEL_SEED="$NIGHT" LEADERGROUP_MODEL_TIMES=5 \
    cargo test --workspace --test lock -- model hostile
  step "new sequences of the database in memory" env LEADERGROUP_MODEL_SEED="$NIGHT" LEADERGROUP_MODEL_TIMES=5 \
    cargo test --workspace --test memory equal::
  step "linearizable histories" make linearizable SEED="$NIGHT"
  step "untrusted input" env CASES="${CASES:-20000}" SEED="$NIGHT" make fuzz
  step "macOS and Windows" make check-platforms
  step "the package of the lock" make publish-check
  # Before the first release there is nothing to compare with, and this only shows that the comparison works.
  step "the public face of the lock" make semver BASELINE="$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || echo HEAD)"
  step "the Containerfile" make containerfile
  exit "$failed"
fi

echo "night $NIGHT: shard $shard"
mkdir -p "$folder"
: >"$folder/steps.tsv"
beside "the steps that only compute" 19 scripts/nightly.sh computing

# Through make, which fails if no scenario has the name. All of them take too long for one night.
case $((NIGHT % 5)) in
  0) step "clients of many changes" env LEADERGROUP_CLIENTS_CHANGES=200 make e2e SCENARIO=clients_view ;;
  1) step "programs of many changes" env LEADERGROUP_PROGRAM_CHANGES=200 make e2e SCENARIO=exactly_one ;;
  2) step "deletions in all orders" make e2e SCENARIO=deletions ;;
  3) step "the examples with agents" make e2e SCENARIO=examples ;;
  4) step "the loss of the database" make e2e SCENARIO=database_lost ;;
esac
# The page must not show the run of an earlier night.
run=$CARGO_TARGET_DIR/random-faults.json
rm -f "$run"
step "random faults" make random-faults MINUTES="${MINUTES:-60}" GROUPS="${FAULT_GROUPS:-20}" SEED="$NIGHT"

join "the steps that only compute" || {
  failed=1
  # If it was killed, it has noted neither the step that ran nor those that were to follow.
  printf 'the steps that only compute\tfailed\t%s\tat least one of them\n' "$SECONDS" >>"$folder/steps.tsv"
}

page=$folder/index.html
[[ -e "$run" ]] || run=
"$CARGO_TARGET_DIR/debug/leadergroup-e2e" page --steps "$folder/steps.tsv" ${run:+"$run"} >"$page"
printf '\nthe page: %s\n' "$page"
exit "$failed"
