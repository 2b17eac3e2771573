#!/usr/bin/env bash
# Checks files that no compiler reads: shell scripts, documents, and copies that must be identical.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
complain() {
  echo "error: $*" >&2
  failed=1
}

while IFS= read -r script; do
  bash -n "$script" || complain "$script: no valid shell script"
  [[ -x "$script" ]] || complain "$script: not executable; run: chmod +x $script"
done < <(git ls-files -- 'scripts/*.sh' .ci/run)

cmp -s crds/leadergroups.yaml charts/leadergroup/crd-files/leadergroups.yaml ||
  complain "the chart's copy of the CRD differs from crds/leadergroups.yaml; run: make crd"

chart_version=$(sed -n 's/^appVersion: "\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' charts/leadergroup/Chart.yaml)
crate_version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[[ "$chart_version" == "$crate_version" ]] ||
  complain "Chart.yaml says appVersion $chart_version, Cargo.toml says version $crate_version"

# Documents: every relative link has a target, and prose has at most 120 columns (tables and code are exempt).
while IFS= read -r document; do
  while IFS= read -r target; do
    path=${target%%#*}
    [[ -z "$path" || -e "$(dirname "$document")/$path" ]] || complain "$document: broken link: $target"
    if [[ "$target" == *'#'* && ("$path" == *.md || -z "$path") ]]; then
      file=$document
      [[ -z "$path" ]] || file=$(dirname "$document")/$path
      # The anchor of a heading: lower case, without punctuation, dashes for spaces.
      sed -n 's/^##* //p' "$file" | tr '[:upper:]' '[:lower:]' | sed "s/[^a-z0-9 _-]//g; s/ /-/g" |
        grep -qxF -- "${target#*#}" || complain "$document: no such heading: $target"
    fi
  done < <(grep -oE '\]\([^)]+\)' "$document" | sed -E 's/^\]\(//; s/\)$//' | grep -vE '^(https?|mailto):' || true)
  awk -v document="$document" '
    /^```/ { code = !code; next }
    { line = $0; gsub(/[\200-\277]/, "", line) } # characters, not bytes
    !code && !/^\|/ && length(line) > 120 { print document ":" NR ": longer than 120 columns"; bad = 1 }
    END { exit bad }' "$document" >&2 || failed=1
done < <(git ls-files -- '*.md')

exit "$failed"
