#!/usr/bin/env bash
# To be sourced: sets HELM, unless it is set, to the Helm of the test cluster if that is built, otherwise to the same
# version of it, which is built into the cache.
if [[ -z "${HELM:-}" ]]; then
  # If the pinned version has changed, there are several: use the newest build.
  HELM=$(find "${LEADERGROUP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leadergroup}/bin" -mindepth 2 -maxdepth 2 -name helm \
    -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -n 1 | cut -d ' ' -f 2-) || true
  if [[ -z "$HELM" ]]; then
    source scripts/go-tool.sh
    go_tool helm.sh/helm/v4/cmd/helm "$(sed -n 's#^\t*helm.sh/helm/v4 \(v[^ ]*\).*#\1#p' e2e/programs/go.mod)"
    HELM=$program
  fi
fi
