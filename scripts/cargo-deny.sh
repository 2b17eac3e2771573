#!/usr/bin/env bash
# Checks the dependencies against deny.toml, with a pinned cargo-deny that is built once into the cache.
#   scripts/cargo-deny.sh build             builds it; several minutes the first time, nothing after that
#   scripts/cargo-deny.sh check <which...>  runs `cargo deny check`, such as: check licenses bans sources
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/cargo-tool.sh
cargo_tool cargo-deny 0.20.2

case "${1:-}" in
  build)
    build_tool
    ;;
  check)
    shift
    build_tool
    # Without a problem it prints warnings of duplicate versions; --log-level error leaves the errors.
    "$program" --locked --log-level error check "$@"
    ;;
  *)
    echo "usage: $0 build | check [advisories] [bans] [licenses] [sources]" >&2
    exit 2
    ;;
esac
