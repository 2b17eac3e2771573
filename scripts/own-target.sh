#!/usr/bin/env bash
# Removes what was built from another checkout of these sources, and keeps the dependencies. Several checkouts share a
# target folder, and cargo tells them apart by the times of their files only: what was built last from another one
# would pass for this one's, and look for its files where that one was.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO_TARGET_DIR:?run this through make}"

owner=$CARGO_TARGET_DIR/checkout
[[ "$(cat "$owner" 2>/dev/null)" == "$PWD" ]] && exit
mkdir -p "$CARGO_TARGET_DIR"
# As cargo does where it makes the folder itself: backups leave it out, and the tests know it by that.
[[ -e "$CARGO_TARGET_DIR/CACHEDIR.TAG" ]] ||
  echo 'Signature: 8a477f597d28d172789f06886806bc55' >"$CARGO_TARGET_DIR/CACHEDIR.TAG"
for profile in dev release; do
  cargo clean --quiet --profile "$profile" --package leadergroup --package leadergroup-lock --package leadergroup-e2e
done
echo "$PWD" >"$owner"
