#!/usr/bin/env bash
# Signs what push.sh has pushed, by its digest, and SHA256SUMS, with cosign. In a workflow of GitHub it needs no key: the
# signature is of the workflow. On other machines cosign asks to log in with a browser.
#   sign.sh [options of cosign...]   such as --key cosign.key
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/go-tool.sh
go_tool github.com/sigstore/cosign/v3/cmd/cosign v3.1.3

[[ -s dist/pushed ]] || { echo "error: nothing was pushed; run: make release-push" >&2; exit 1; }
# Not from standard input, from which cosign may read a password.
while read -r reference <&3; do
  "$program" sign --yes "$@" "$reference"
done 3<dist/pushed
"$program" sign-blob --yes "$@" --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS >/dev/null
