#!/usr/bin/env bash
# Writes the table of values in the chart's README from values.yaml: a `# --` comment describes the key below it. With
# --check, only reports whether the table is up to date.
set -euo pipefail
cd "$(dirname "$0")/../charts/leadergroup"

table() {
  echo '| Value | Default | Meaning |'
  echo '|---|---|---|'
  awk '
    /^ *# -- / { sub(/^ *# -- /, ""); about = $0; next }
    about != "" && /^ *# / { sub(/^ *# /, ""); about = about " " $0; next }
    /^ *[A-Za-z]+:/ {
      match($0, /^ */)
      depth = RLENGTH / 2
      name = $1
      sub(/:$/, "", name)
      path[depth] = name
      if (about == "") next
      key = path[0]
      for (i = 1; i <= depth; i++) key = key "." path[i]
      value = $0
      sub(/^ *[A-Za-z]+: */, "", value)
      gsub(/\|/, "\\|", about)
      printf "| `%s` | %s | %s |\n", key, value == "" ? "see values.yaml" : "`" value "`", about
      about = ""
    }' values.yaml
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
awk '/^<!-- values -->$/ { exit } { print }' README.md >"$new"
{
  echo '<!-- values -->'
  echo
  table
  echo
} >>"$new"
awk '/^<!-- end of values -->$/ { found = 1 } found { print }' README.md >>"$new"

if [[ "${1:-}" == --check ]]; then
  diff -u README.md "$new" || { echo "error: the chart's README is out of date; run: make chart-readme" >&2; exit 1; }
else
  cat "$new" >README.md
fi
