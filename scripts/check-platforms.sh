#!/usr/bin/env bash
# Checks that the crate leadergroup-lock compiles for macOS and Windows, and that the plugin of kubectl is also linked,
# with Zig as C compiler and linker. They are not run there.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/release/zig.sh

# The wrappers of the compiler go there.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}
for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do
  [[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]] || rustup target add "$target"
  zig_cargo check --locked --package leadergroup-lock --features memory,prometheus-client --target "$target"
  # As in scripts/release/programs.sh.
  frameworks=()
  [[ "$target" != *-apple-* ]] || frameworks=(-C "link-arg=-F$PWD/scripts/release/frameworks")
  zig_cargo rustc --locked --package leadergroup --bin kubectl-leadergroup --no-default-features --features plugin \
    --target "$target" -- "${frameworks[@]}"
done
