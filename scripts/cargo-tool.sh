#!/usr/bin/env bash
# To be sourced: a pinned program of cargo, built once into the cache.
#   cargo_tool <crate> <version>   sets `program`
#   build_tool [option...]         builds it; several minutes the first time, nothing after that. The options are those
#                                  of `cargo install`

cargo_tool() {
  tool=$1
  tool_version=$2
  tool_root=${LEADERGROUP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leadergroup}/tools/$tool-$tool_version
  program=$tool_root/bin/$tool
}

build_tool() {
  [[ -x "$program" ]] && return
  mkdir -p "$tool_root"
  # One build at a time; a second one finds the program of the first.
  exec 9>"$tool_root/lock"
  flock 9
  [[ -x "$program" ]] && return
  echo "building $tool $tool_version into $tool_root"
  CARGO_TARGET_DIR=$tool_root/build cargo install --locked --quiet --version "$tool_version" --root "$tool_root" "$@" "$tool"
  rm -rf "$tool_root/build"
}
