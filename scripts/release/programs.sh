#!/usr/bin/env bash
# Builds the programs of a release without shared libraries of others than the system, and archives of them:
#   dist/bin/<platform>/<program>                         the platforms are amd64 and arm64, for Linux, and the others
#                                                         with their system: windows_amd64, darwin_amd64, darwin_arm64
#   dist/<program>_<version>_<system>_<architecture>.tar.gz, .zip for Windows    with the license
# The same commit gives the same bytes, in whatever folder it is built: with the same Rust, and the Zig of zig.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${CARGO_TARGET_DIR:?run this through make release}"
source scripts/release/zig.sh

declare -A targets=(
  [amd64]=x86_64-unknown-linux-musl [arm64]=aarch64-unknown-linux-musl [windows_amd64]=x86_64-pc-windows-gnu
  [darwin_amd64]=x86_64-apple-darwin [darwin_arm64]=aarch64-apple-darwin
)
# Rust makes position-independent programs for amd64, and asks the linker for them in words that Zig passes over.
# In a program for Windows, the linker writes its time otherwise. For macOS it has the C library, but not the frameworks.
frameworks="-C link-arg=-F$PWD/scripts/release/frameworks"
declare -A linking=(
  [amd64]='-C link-arg=-pie' [windows_amd64]='-C link-arg=-Wl,-Brepro'
  [darwin_amd64]=$frameworks [darwin_arm64]=$frameworks
)
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

# libraries <system> <program>: those that the program needs, and that the system does not bring
libraries() {
  case $1 in
    linux) readelf --dynamic --program-headers "$2" | grep -E 'NEEDED|INTERP' ;;
    darwin) scripts/release/macho.py "$2" | grep -vE '^/(usr/lib|System/Library)/' ;;
    windows) objdump --private-headers "$2" | grep -iE 'DLL Name: (lib|.*(gcc|winpthread|stdc))' ;;
  esac
}

# packed <folder> <program> <system> <platform>: the archive of the program and the license
packed() {
  local archive=dist/${2%.exe}_${version}_$3_${4##*_}
  if [[ $3 == windows ]]; then
    scripts/release/zip.py "$archive.zip" "$SOURCE_DATE_EPOCH" "$1/$2" LICENSE
    return
  fi
  tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --directory "$1" "$2" --directory "$PWD" LICENSE |
    gzip --no-name --best >"$archive.tar.gz"
}

for platform in ${PLATFORMS:-amd64 arm64 windows_amd64 darwin_amd64 darwin_arm64}; do
  target=${targets[$platform]:?the platforms are ${!targets[*]}}
  system=linux
  [[ $platform != *_* ]] || system=${platform%_*}
  [[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]] || rustup target add "$target"
  mkdir -p "dist/bin/$platform"
  while read -r program package profile systems options; do
    [[ ",$systems," == *",$system,"* ]] || continue
    echo "==> $program for $platform"
    # The allocator is compiled for a size of pages, and also works with smaller ones: arm64 has kernels with 64 KiB.
    # shellcheck disable=SC2086 # the options are words
    JEMALLOC_SYS_WITH_LG_PAGE=$([[ $platform == arm64 ]] && echo 16 || echo 12) RUSTFLAGS=$remap \
      zig_cargo rustc --locked --profile "$profile" --package "$package" --bin "$program" --target "$target" $options -- \
      ${linking[$platform]:-}
    [[ $system != windows ]] || program+=.exe
    install -m 755 "$CARGO_TARGET_DIR/$target/$profile/$program" "dist/bin/$platform/$program"
    # It fails if the program is not signed.
    [[ $system != darwin ]] || scripts/release/macho.py "dist/bin/$platform/$program" >/dev/null
    ! libraries "$system" "dist/bin/$platform/$program" ||
      { echo "error: dist/bin/$platform/$program needs shared libraries" >&2; exit 1; }
    packed "dist/bin/$platform" "$program" "$system" "$platform"
  done < <(grep -v '^#' scripts/release/programs.txt)
done
