#!/usr/bin/env bash
# Builds the programs of a release without shared libraries, and archives of them:
#   dist/bin/<platform>/<program>                      the platforms are amd64 and arm64
#   dist/<program>_<version>_linux_<platform>.tar.gz   with the license
# The same commit gives the same bytes, in whatever folder it is built: with the same Rust, and the Zig of zig.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${CARGO_TARGET_DIR:?run this through make release}"
source scripts/release/zig.sh

declare -A targets=([amd64]=x86_64-unknown-linux-musl [arm64]=aarch64-unknown-linux-musl)
# Rust makes position-independent programs for amd64, and asks the linker for them in words that Zig passes over.
declare -A linking=([amd64]='-C link-arg=-pie' [arm64]='')
version=$(scripts/release/version.sh)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# As in the image that the Containerfile builds.
rust=$(sed -n 's/^FROM rust:\([0-9.]*\).*/\1/p' Containerfile)
[[ "$(rustc --version)" == "rustc $rust."* ]] ||
  { echo "error: a release is built with Rust $rust, this is $(rustc --version); run: rustup override set $rust" >&2; exit 1; }

# Paths of this machine stay out of the programs.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
remap="--remap-path-prefix=$PWD=/src --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$CARGO_TARGET_DIR=/target"
export CFLAGS="-ffile-prefix-map=$PWD=/src -ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$CARGO_TARGET_DIR=/target"

for platform in ${PLATFORMS:-amd64 arm64}; do
  target=${targets[$platform]:?the platforms are amd64 and arm64}
  [[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]] || rustup target add "$target"
  mkdir -p "dist/bin/$platform"
  while read -r program package profile options; do
    echo "==> $program for $platform"
    # The allocator is compiled for a size of pages, and also works with smaller ones: arm64 has kernels with 64 KiB.
    # shellcheck disable=SC2086 # the options are words
    JEMALLOC_SYS_WITH_LG_PAGE=$([[ $platform == arm64 ]] && echo 16 || echo 12) RUSTFLAGS=$remap \
      zig_cargo rustc --locked --profile "$profile" --package "$package" --bin "$program" --target "$target" $options -- \
      ${linking[$platform]}
    built=dist/bin/$platform/$program
    install -m 755 "$CARGO_TARGET_DIR/$target/$profile/$program" "$built"
    ! readelf --dynamic --program-headers "$built" | grep -E 'NEEDED|INTERP' ||
      { echo "error: $built needs shared libraries" >&2; exit 1; }
    tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
      --directory "dist/bin/$platform" "$program" --directory "$PWD" LICENSE |
      gzip --no-name --best >"dist/${program}_${version}_linux_$platform.tar.gz"
  done < <(grep -v '^#' scripts/release/programs.txt)
done
