#!/usr/bin/env bash
# To be sourced: a pinned program of a Go module, built once into the cache.
#   go_tool <package> <version>   builds it, and sets `program`

go_tool() {
  local name=${1##*/} root
  root=${LEADERGROUP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leadergroup}/tools/$name-$2
  program=$root/bin/$name
  [[ -x "$program" ]] && return
  mkdir -p "$root"
  # One build at a time; a second one finds the program of the first.
  (
    flock 9
    [[ -x "$program" ]] && exit
    echo "building $name $2 into $root" >&2
    GOBIN=$root/bin GOFLAGS='' GOWORK=off CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' "$1@$2"
  ) 9>"$root/lock"
}
