#!/usr/bin/env bash
# To be sourced: `crane`, the program of go-containerregistry, which speaks with registries.
source scripts/go-tool.sh
crane() {
  go_tool github.com/google/go-containerregistry/cmd/crane v0.22.1
  "$program" "$@"
}
