#!/usr/bin/env bash
# Removes the results of builds of another checkout, but keeps the dependencies. Checkouts share a target directory, and
# cargo distinguishes them only by file times. It would use a newer build of another checkout, which looks for its files
# in that checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO_TARGET_DIR:?run this through make}"

owner=$CARGO_TARGET_DIR/checkout
[[ "$(cat "$owner" 2>/dev/null)" == "$PWD" ]] && exit
mkdir -p "$CARGO_TARGET_DIR"
# As cargo does for a directory that it creates: backups skip it, and the tests recognize it by this file.
[[ -e "$CARGO_TARGET_DIR/CACHEDIR.TAG" ]] ||
  echo 'Signature: 8a477f597d28d172789f06886806bc55' >"$CARGO_TARGET_DIR/CACHEDIR.TAG"
packages=(--package leadergroup --package leadergroup-lock --package leadergroup-e2e --package leadergroup-agent)
for profile in dev release; do
  cargo clean --quiet --profile "$profile" "${packages[@]}"
done
# Those of a named platform, such as the programs of a release.
for folder in "$CARGO_TARGET_DIR"/*-*-*/; do
  [[ -d "$folder" ]] || continue
  for profile in release agent; do
    cargo clean --quiet --profile "$profile" --target "$(basename "$folder")" "${packages[@]}"
  done
done
echo "$PWD" >"$owner"
