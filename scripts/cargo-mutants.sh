#!/usr/bin/env bash
# Makes small generated changes to decision code with a pinned cargo-mutants, and runs fast tests against each change.
# .cargo/mutants.toml lists the functions that are left out, with reasons. The program is built once into the cache.
#   scripts/cargo-mutants.sh build                    builds it; several minutes the first time, nothing after that
#   scripts/cargo-mutants.sh run <room> [options]     the rooms: election, health, lock, operator, ownership. The options are those of
#                                                     `cargo mutants`: --shard 0/8, --in-diff change.diff, --iterate
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/cargo-tool.sh
cargo_tool cargo-mutants 27.1.0

# copy <room>: a copy of the sources, to be changed. Its files are new, because cargo goes by their times: what is there
# from the last run may be built from a changed file. A room that uses no other but `api` (tests/rooms checks it) is alone
# with it there, so that one change is compiled in seconds.
copy() {
  rm -rf "$home/tree"
  mkdir -p "$home/tree"
  git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --ignore-failed-read -cf - 2>/dev/null |
    tar -xmf - -C "$home/tree"
  case "$1" in
    election | health | ownership)
      rm "$home/tree/src/main.rs"
      sed -i -E "/^pub mod /{/ (api|$1);/!d}" "$home/tree/src/lib.rs"
      ;;
  esac
}

run() {
  local room=$1 files=() tests=(--cargo-arg=--lib) words=()
  shift
  # The tests in order: the first program that fails ends the run. What needs sockets, servers or minutes is left out.
  case "$room" in
    election)
      files=(-f 'src/election/*.rs')
      tests+=(--cargo-arg=--test=simulation)
      words=(--skip every_order)
      ;;
    health)
      files=(-f 'src/health/*.rs')
      tests+=(--cargo-arg=--test=health)
      words=(--skip prober:: --skip grpc:: --skip hold:: --skip late:: --skip stopped::)
      ;;
    lock)
      files=(--package leadergroup-lock -f lock/src/session/lease.rs -f lock/src/session/failure_detector.rs -f lock/src/session/quarantine.rs)
      ;;
    operator)
      files=(-f src/routing/marks.rs -f src/operator/executor/queue.rs -f src/operator/index/timers.rs)
      ;;
    ownership)
      files=(-f 'src/ownership/**/*.rs')
      ;;
    *)
      echo "error: there is no room $room for this" >&2
      exit 2
      ;;
  esac
  home=${CARGO_TARGET_DIR:?run this through make}/mutants/$room
  copy "$room"
  # The dependencies are those of the usual build.
  if [[ ! -d "$home/target" && -d "$CARGO_TARGET_DIR/debug/deps" ]]; then
    mkdir -p "$home/target/debug"
    cp -a "$CARGO_TARGET_DIR"/debug/{.fingerprint,build,deps} "$home/target/debug/"
  fi
  cd "$home/tree"
  CARGO_TARGET_DIR=$home/target "$program" mutants --in-place --output "$home" "${files[@]}" "${tests[@]}" "$@" -- -- "${words[@]}"
}

case "${1:-}" in
  build)
    build_tool
    ;;
  run)
    build_tool
    run "${@:2}"
    ;;
  *)
    echo "usage: $0 build | run <room> [options of cargo mutants]" >&2
    exit 2
    ;;
esac
