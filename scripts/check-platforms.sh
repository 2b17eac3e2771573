#!/usr/bin/env bash
# Checks that the crate leadergroup-lock compiles for macOS and Windows, with the C compiler of Zig. It is not run there.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/release/zig.sh

# The wrappers of the compiler go there.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}
for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do
  [[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]] || rustup target add "$target"
  zig_cargo check --locked --package leadergroup-lock --features memory,prometheus-client --target "$target"
done
