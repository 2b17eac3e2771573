#!/usr/bin/env bash
# Builds the site from the documents, with a pinned mdBook that is built once into the cache.
#   scripts/site.sh build   builds mdBook; some minutes the first time, nothing after that
#   scripts/site.sh         builds the site into dist/site, and checks its links
set -euo pipefail
cd "$(dirname "$0")/.."

source scripts/cargo-tool.sh
cargo_tool mdbook 0.5.4
build_tool --no-default-features --features search
[[ "${1:-}" == build ]] || scripts/site.py "$program" dist/site
