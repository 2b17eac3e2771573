#!/usr/bin/env bash
# Builds both images of the Containerfile with buildah, and runs what is in them. The images that it begins with are made
# here: Debian from its packages, and with it the compiler and the Rust of this machine, as in the images of the same
# names. So no registry of images is needed, and no daemon. Needs root, and Debian or Ubuntu.
#   FULL=1   with the optimisations of a release. Without, they are off, and all else is the same
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "error: $*" >&2
  exit 1
}
((EUID == 0)) || fail "this needs root"
missing=()
for tool in buildah mmdebstrap; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
if ((${#missing[@]})); then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi
version=$(scripts/release/version.sh)
rust=$(sed -n 's/^FROM rust:\([0-9.]*\).*/\1/p' Containerfile)
suite=$(sed -n 's/^FROM debian:\([a-z]*\)-slim$/\1/p' Containerfile)
rust_image=docker.io/library/rust:$rust-slim-$suite
debian_image=docker.io/library/debian:$suite-slim
[[ "$(rustc --version)" == "rustc $rust."* ]] || fail "the Containerfile has Rust $rust, this is $(rustc --version)"

folder=${LEADERGROUP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leadergroup}/containerfile
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
work=$(mktemp -d "$folder/run.XXXXXX")
cat >"$work/registries.conf" <<<'unqualified-search-registries = ["docker.io"]'
cat >"$work/policy.json" <<<'{"default": [{"type": "insecureAcceptAnything"}]}'
export CONTAINERS_REGISTRIES_CONF=$work/registries.conf BUILDAH_ISOLATION=chroot
# What the build keeps for another time, such as the crates, goes as well.
export TMPDIR=$work
run() { buildah --root "$work/storage" --runroot "$work/state" "$@"; }
trap 'run rm --all >/dev/null 2>&1 || true; umount "$work/storage/overlay" 2>/dev/null || true; rm -rf "$work"' EXIT

# system <name> [packages]: Debian as an archive, made anew after a month
system() {
  local archive=$folder/$suite-$1.tar
  [[ -z "$(find "$archive" -mtime -30 2>/dev/null)" ]] || return 0
  echo "==> Debian $suite: $1"
  mmdebstrap --quiet --variant=minbase ${2:+--include="$2"} "$suite" "$archive.new"
  mv "$archive.new" "$archive"
}
system slim
# As the image of Rust: https://github.com/rust-lang/docker-rust has what it installs.
system rust ca-certificates,gcc,libc6-dev

echo "==> the images to begin with"
base=$(run from scratch)
run add --quiet "$base" "$folder/$suite-slim.tar" / >/dev/null
run config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd bash "$base"
run commit --quiet --rm "$base" "$debian_image" >/dev/null

base=$(run from scratch)
run add --quiet "$base" "$folder/$suite-rust.tar" / >/dev/null
host=$(rustc --print host-tuple)
toolchain=/usr/local/rustup/toolchains/$rust-$host
root=$(run mount "$base")
mkdir -p "$root$toolchain" "$root/usr/local/cargo/bin"
tar --create --directory "$(rustc --print sysroot)" --exclude=./share --exclude='./lib/rustlib/*-*-*/*' . |
  tar --extract --directory "$root$toolchain"
cp -r "$(rustc --print sysroot)/lib/rustlib/$host" "$root$toolchain/lib/rustlib/"
for tool in cargo rustc rustdoc; do ln -s "$toolchain/bin/$tool" "$root/usr/local/cargo/bin/$tool"; done
run unmount "$base" >/dev/null
run config --env PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  --env RUSTUP_HOME=/usr/local/rustup --env CARGO_HOME=/usr/local/cargo --cmd bash "$base"
if [[ -z "${FULL:-}" ]]; then
  for profile in RELEASE AGENT; do
    run config --env "CARGO_PROFILE_${profile}_OPT_LEVEL=0" --env "CARGO_PROFILE_${profile}_LTO=off" \
      --env "CARGO_PROFILE_${profile}_CODEGEN_UNITS=16" "$base"
  done
fi
run commit --quiet --rm "$base" "$rust_image" >/dev/null

# built <tag> [options]: what the head of the Containerfile says, with the certificates that this machine trusts
built() {
  local tag=$1
  shift
  echo "==> the image $tag"
  run bud --pull-never --layers --network host --signature-policy "$work/policy.json" \
    --volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro \
    --file Containerfile --tag "$tag" "$@" .
}
# said <tag> <command...>: what a command in the image prints
said() {
  local container
  container=$(run from --pull-never "$1")
  run run "$container" -- "${@:2}"
  run rm "$container" >/dev/null
}
settings() {
  run inspect --type image --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}' "$1"
}

built operator
[[ "$(said operator /usr/local/bin/leadergroup version)" == "leadergroup $version" ]] || fail "the operator is not $version"
[[ "$(settings operator)" == "65532:65532 [/usr/local/bin/leadergroup] [run]" ]] || fail "the operator: $(settings operator)"
built agent --target agent
[[ "$(said agent /leadergroup-agent --version)" == "leadergroup-agent $version" ]] || fail "the agent is not $version"
[[ "$(settings agent)" == "65532:65532 [/leadergroup-agent] []" ]] || fail "the agent: $(settings agent)"
echo "Containerfile: both images were built, and their programs are $version"
