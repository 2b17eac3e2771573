#!/usr/bin/env bash
# Prints the version of the release. Fails unless Cargo.toml, the chart, CHANGELOG.md and a tag of this commit agree.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "error: $*" >&2
  exit 1
}
of_chart() { sed -n "s/^$1: \"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" charts/leadergroup/Chart.yaml; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[[ -n "$version" ]] || fail "Cargo.toml has no version"
for field in version appVersion; do
  [[ "$(of_chart "$field")" == "$version" ]] ||
    fail "Chart.yaml says $field $(of_chart "$field"), Cargo.toml says version $version"
done

# A commit may have no tag: then this is a trial.
mapfile -t tags < <(git tag --points-at HEAD --list 'v[0-9]*')
if ((${#tags[@]})); then
  [[ " ${tags[*]} " == *" v$version "* ]] || fail "the tag of this commit is ${tags[*]}, Cargo.toml says version $version"
  [[ -z "$(git status --porcelain)" ]] || fail "this commit has the tag v$version, and there are changes beside it: git status"
  grep -qF "## [$version]" CHANGELOG.md || fail "CHANGELOG.md has no section [$version]"
fi
echo "$version"
