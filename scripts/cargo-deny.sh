#!/usr/bin/env bash
# Checks the dependencies against deny.toml, with a pinned cargo-deny that is built once into the cache.
#   scripts/cargo-deny.sh build             builds it; several minutes the first time, nothing after that
#   scripts/cargo-deny.sh check <which...>  runs `cargo deny check`, such as: check licenses bans sources
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
cache=${LEADERGROUP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leadergroup}
root=$cache/tools/cargo-deny-$version
program=$root/bin/cargo-deny

build() {
  [[ -x "$program" ]] && return
  mkdir -p "$root"
  # One build at a time; a second one finds the program of the first.
  exec 9>"$root/lock"
  flock 9
  [[ -x "$program" ]] && return
  echo "building cargo-deny $version into $root"
  CARGO_TARGET_DIR=$root/build cargo install --locked --quiet --version "$version" --root "$root" cargo-deny
  rm -rf "$root/build"
}

case "${1:-}" in
  build)
    build
    ;;
  check)
    shift
    build
    # Without a problem it prints warnings of duplicate versions; --log-level error leaves the errors.
    "$program" --locked --log-level error check "$@"
    ;;
  *)
    echo "usage: $0 build | check [advisories] [bans] [licenses] [sources]" >&2
    exit 2
    ;;
esac
