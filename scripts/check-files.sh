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

scripts/release/version.sh >/dev/null || failed=1

# The Containerfile's build has the manifest of each crate, and the sources that a manifest names.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mapfile -t kept < <(sed -n 's/^!//p' .dockerignore)
git ls-files -z -- "${kept[@]}" | tar --null --files-from - --create --file - | tar --extract --file - --directory "$context"
(cd "$context" && cargo metadata --no-deps --locked --offline --format-version 1 >/dev/null) ||
  complain ".dockerignore leaves out what the build of the image needs"

# The workflows of GitHub are valid.
source scripts/go-tool.sh
if go_tool github.com/rhysd/actionlint/cmd/actionlint v1.7.12; then
  "$program" -shellcheck= -pyflakes= .github/workflows/*.yml || failed=1
else
  complain "actionlint could not be built, which checks .github/workflows"
fi

# Planted faults (make mutants) fit the sources.
scripts/mutants.py --check || failed=1

# CONTRIBUTING.md names files by their path, or by its end. Words in capitals and <brackets> stand for names.
while IFS= read -r named; do
  grep -qE "(^|/)${named//./\\.}" < <(git ls-files) || complain "CONTRIBUTING.md names $named, which is not there"
done < <(grep -oE '`[^` ]+`' CONTRIBUTING.md | tr -d '`' | grep -E '/|\.(rs|md|toml|sh|py)$' | grep -vE '[A-Z]{4}|[<~:]' | sort -u)

# Documents: links lead somewhere, and prose keeps to 120 columns (tables, code and long links may not).
scripts/check-links.sh || failed=1
while IFS= read -r document; do
  awk -v document="$document" '
    /^```/ { code = !code; next }
    { line = $0; gsub(/[\200-\277]/, "", line) } # characters, not bytes
    !code && !/^\|/ && length(line) > 120 { print document ":" NR ": longer than 120 columns"; bad = 1 }
    END { exit bad }' "$document" >&2 || failed=1
done < <(git ls-files -- '*.md')

# Comments (tables excepted) keep to 120 columns, too; rustfmt does not wrap them.
while IFS= read -r source; do
  awk -v source="$source" '
    { line = $0; gsub(/[\200-\277]/, "", line) }
    line ~ /^ *\/\// && line !~ /^ *\/\/! \|/ && length(line) > 120 { print source ":" NR ": longer than 120 columns"; bad = 1 }
    END { exit bad }' "$source" >&2 || failed=1
done < <(git ls-files -- '*.rs')

exit "$failed"
