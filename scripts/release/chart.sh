#!/usr/bin/env bash
# Packages the chart: dist/leadergroup-<version>.tgz. Its annotations get the images, from values.yaml, and the changes,
# from CHANGELOG.md, for Artifact Hub.
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/helm.sh

version=$(scripts/release/version.sh)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

chart=charts/leadergroup
cp -r "$chart" "$work/leadergroup"
images() {
  # Those of this project have no tag of their own in values.yaml.
  sed -n 's#^ *repository: \(ghcr\.io/.*\)#\1#p' "$chart/values.yaml" | while read -r repository; do
    printf -- '- name: %s\n  image: %s:%s\n' "${repository##*/}" "$repository" "$version"
  done
}
[[ $(images | grep -c image:) == "$(grep -c '^COPY --from=' Containerfile)" ]] ||
  { echo "error: values.yaml does not name the images of the Containerfile:" >&2; images >&2; exit 1; }
{
  echo '  artifacthub.io/images: |'
  images | sed 's/^/    /'
  echo '  artifacthub.io/changes: |'
  scripts/release/changelog.py changes "$version" | sed 's/^/    /'
} >"$work/annotations"
# They are the last field of the file.
[[ "$(grep -E '^[a-zA-Z]+:' "$chart/Chart.yaml" | tail -n 1)" == annotations: ]] ||
  { echo "error: annotations are not the last field of Chart.yaml" >&2; exit 1; }
cat "$work/annotations" >>"$work/leadergroup/Chart.yaml"

"$HELM" lint --strict --quiet "$work/leadergroup"
"$HELM" package "$work/leadergroup" --destination "$work" >/dev/null
# The same with the time of the commit, and in one order.
mkdir "$work/package"
tar --extract --gzip --file "$work/leadergroup-$version.tgz" --directory "$work/package"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
  --directory "$work/package" leadergroup | gzip --no-name --best >"dist/leadergroup-$version.tgz"
echo "dist/leadergroup-$version.tgz"
