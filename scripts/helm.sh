#!/usr/bin/env bash
# To be sourced: sets HELM, unless it is set, to the Helm of the test cluster, which is built from source in a known
# version, or to that of this machine.
if [[ -z "${HELM:-}" ]]; then
  # If the pinned version has changed, there are several: use the newest build.
  HELM=$(find "${LEADERGROUP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leadergroup}/bin" -mindepth 2 -maxdepth 2 -name helm \
    -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -n 1 | cut -d ' ' -f 2-)
  [[ -n "$HELM" ]] ||
    HELM=$(command -v helm) ||
    { echo "error: helm is missing; run: make build-cluster, or set HELM to one" >&2; exit 1; }
fi
