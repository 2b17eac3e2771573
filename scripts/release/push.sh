#!/usr/bin/env bash
# Pushes the images and the chart of dist to a registry, and writes what it has pushed, by digest, to dist/pushed. A
# version that the registry has with another digest is not replaced.
#   push.sh <registry>   such as ghcr.io/leadergroup; the chart becomes <registry>/charts/leadergroup
# One on this machine, 127.0.0.1:<port>/<path>, is spoken to without TLS.
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/helm.sh
source scripts/release/crane.sh

registry=${1:?usage: $0 <registry>}
version=$(scripts/release/version.sh)
options=()
[[ "$registry" != 127.0.0.1:* ]] || options=(--plain-http)
(cd dist && sha256sum --check --quiet SHA256SUMS)

# different <reference> <digest>: fails if the registry has another one, or does not say whether it has one
different() {
  local there
  if ! there=$(crane digest "$1" 2>&1); then
    [[ "$there" == *404* || "$there" == *MANIFEST_UNKNOWN* || "$there" == *NAME_UNKNOWN* ]] && return 0
    echo "error: $1: $there" >&2
    exit 1
  fi
  [[ "$there" == "$2" ]] || { echo "error: $1 is there already, as $there" >&2; exit 1; }
}

: >dist/pushed.new
while IFS=@ read -r reference digest; do
  name=${reference##*/}
  name=${name%:*}
  different "$registry/$name:$version" "$digest"
  pushed=$(crane push "dist/images/$name" "$registry/$name:$version")
  [[ "$pushed" == *"@$digest" ]] || { echo "error: pushed $pushed instead of $digest" >&2; exit 1; }
  echo "$registry/$name@$digest" >>dist/pushed.new
done <dist/IMAGES

chart=$registry/charts/leadergroup
if before=$(crane digest "$chart:$version" 2>/dev/null); then
  layer=$(crane manifest "$chart:$version" | python3 -c 'import json, sys; print(json.load(sys.stdin)["layers"][0]["digest"])')
  [[ "$layer" == "sha256:$(sha256sum <"dist/leadergroup-$version.tgz" | cut -d ' ' -f 1)" ]] ||
    { echo "error: $chart:$version is there already, with another package, as $before" >&2; exit 1; }
else
  "$HELM" push "${options[@]}" "dist/leadergroup-$version.tgz" "oci://$registry/charts" >&2
fi
echo "$chart@$(crane digest "$chart:$version")" >>dist/pushed.new
mv dist/pushed.new dist/pushed
cat dist/pushed
