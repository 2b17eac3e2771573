#!/usr/bin/env bash
# To be sourced: Zig, whose C compiler and linker have the C library of every platform, and cargo-zigbuild, which lets
# cargo use it. Both come from PyPI in the versions of zig.txt, once into the cache.
#   zig_cargo <rustc or check, with its options...>

zig_cargo() {
  local requirements=scripts/release/zig.txt root
  root=${LEADERGROUP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leadergroup}/tools/zig-$(sha256sum "$requirements" | cut -c 1-12)
  if [[ ! -d "$root" ]]; then
    echo "installing Zig into $root" >&2
    rm -rf "$root.unfinished"
    python3 -m pip install --quiet --require-hashes --no-deps --only-binary :all: --target "$root.unfinished" \
      --requirement "$requirements"
    mv "$root.unfinished" "$root"
  fi
  # The wrappers of the compiler, which cargo-zigbuild writes, belong into the target directory.
  PATH=$root/bin:$PATH CARGO_ZIGBUILD_ZIG_PATH=$root/ziglang/zig CARGO_ZIGBUILD_CACHE_DIR=$CARGO_TARGET_DIR/zigbuild \
    cargo-zigbuild "$@"
}
