#!/usr/bin/env bash
# Makes everything that a release consists of, in dist. docs/releasing.md describes it. Nothing is published.
#   PLATFORMS=amd64   for one platform only; programs.sh lists them
#   REGISTRY=...      where the images will be; the chart's values name ghcr.io/leadergroup
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(scripts/release/version.sh)
registry=${REGISTRY:-ghcr.io/leadergroup}
# shellcheck disable=SC2206 # the names are words
platforms=(${PLATFORMS:-amd64 arm64})
# Images are for Linux; the other platforms have the name of their system.
for platform in "${!platforms[@]}"; do
  [[ ${platforms[platform]} != *_* ]] || unset "platforms[platform]"
done
((${#platforms[@]})) || { echo "error: a release has images: for amd64, arm64 or both" >&2; exit 1; }
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
[[ -z "$(git status --porcelain)" ]] || echo "warning: there are changes beside the commit, so this is a trial" >&2

rm -rf dist
mkdir dist
scripts/release/programs.sh
echo "==> images"
scripts/release/images.py "$version" "$(git rev-parse HEAD)" "$SOURCE_DATE_EPOCH" "$registry" "${platforms[@]}" |
  while read -r name digest; do echo "$registry/$name:$version@$digest"; done | tee dist/IMAGES
echo "==> chart"
scripts/release/chart.sh
echo "==> bills of materials"
scripts/release/sboms.sh
plugin=kubectl-leadergroup
if grep -q "^$plugin " scripts/release/programs.txt; then
  scripts/release/krew.py "$version" "https://github.com/leadergroup/leadergroup/releases/download/v$version" >"dist/$plugin.krew.yaml"
fi
scripts/release/notes.sh >dist/NOTES.md
echo "==> provenance"
scripts/release/provenance.py "$version" "$(git rev-parse HEAD)" >dist/provenance.intoto.json
echo "==> sums"
cd dist
find . -maxdepth 1 -type f ! -name NOTES.md ! -name 'SHA256SUMS*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS.new
mv SHA256SUMS.new SHA256SUMS
cat SHA256SUMS
