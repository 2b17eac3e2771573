#!/usr/bin/env bash
# Every relative link in the documents leads to a tracked file or folder, and every anchor to a heading. Links to the
# network are not followed. Without arguments it checks all documents of the repository.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
complain() {
  echo "error: $*" >&2
  failed=1
}

# links <document>: the targets of its links, inline or by reference, but for code and addresses on the network
links() {
  awk '/^ *```/ { code = !code; next } !code { gsub(/`[^`]*`/, "`"); print }' "$1" |
    grep -oE '\]\([^)]+\)|^ *\[[^]]+\]: +[^ ]+' |
    sed -E 's/^\]\(//; s/\)$//; s/^ *\[[^]]+\]: +//; s/ +"[^"]*"$//' |
    grep -vE '^([a-z]+:|//)' || true
}

# anchors <document>: as the forges make them of headings: lower case, without punctuation, with dashes for spaces; the
# second of the same name ends in -1, and so on
anchors() {
  awk '/^ *```/ { code = !code; next } !code && /^#+ / { sub(/^#+ +/, ""); print }' "$1" |
    sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g' | tr '[:upper:]' '[:lower:]' | sed "s/[^a-z0-9 _-]//g; s/ /-/g" |
    awk '{ n = seen[$0]++; print n ? $0 "-" n : $0 }'
}

if (($#)); then documents=("$@"); else mapfile -t documents < <(git ls-files -- '*.md'); fi
checked=0
for document in "${documents[@]}"; do
  while IFS= read -r target; do
    checked=$((checked + 1))
    path=${target%%#*}
    file=$document
    if [[ -n "$path" ]]; then
      file=$(realpath -m --relative-to=. "$(dirname "$document")/$path")
      [[ -n "$(git ls-files --cached --others --exclude-standard -- "$file" | head -n 1)" ]] || {
        complain "$document: broken link: $target"
        continue
      }
    fi
    if [[ "$target" == *'#'* && "$file" == *.md ]]; then
      anchors "$file" | grep -qxF -- "${target#*#}" || complain "$document: no such heading: $target"
    fi
  done < <(links "$document")
done
((checked > 0)) || complain "no link found in ${documents[*]}"
exit "$failed"
