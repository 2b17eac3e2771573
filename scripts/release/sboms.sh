#!/usr/bin/env bash
# Writes what each program is made of, as CycloneDX: dist/<program>_<version>.cdx.json, with cargo-cyclonedx. It works
# on a copy, because it writes into the sources.
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/cargo-tool.sh
cargo_tool cargo-cyclonedx 0.5.9
build_tool

version=$(scripts/release/version.sh)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
dist=$PWD/dist
table=$PWD/scripts/release/programs.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | tar --null --files-from - --create --file - | tar --extract --file - --directory "$work"
cd "$work"
# What tests need would turn on features that a program was built without.
sed -i 's/, "e2e"\]/]/; /^\[dev-dependencies\]/,/^\[/{/^\[dev-dependencies\]/d; /^\[/!d}' Cargo.toml
while read -r name package _ _ options; do
  find . -name '*.cdx.json' -delete
  # shellcheck disable=SC2086 # the options are words
  "$program" cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --no-build-deps \
    --target x86_64-unknown-linux-musl $options
  mapfile -t found < <(find . -name "${name}_bin.cdx.json")
  ((${#found[@]} == 1)) || { echo "error: not one bill of materials of $package: ${found[*]}" >&2; exit 1; }
  sed "s#$work#/src#g" "${found[0]}" >"$dist/${name}_$version.cdx.json"
  echo "dist/${name}_$version.cdx.json"
done < <(grep -v '^#' "$table")
