#!/usr/bin/env bash
# Installs missing Debian packages that the tests and the demo need, and reports what it cannot install. If everything
# is present, it does nothing and is fast.
set -euo pipefail

missing=()
need() { # need <Debian package> <check...>: the package is needed if the check fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
static_busybox() { [[ -x /bin/busybox ]] && ! ldd /bin/busybox; }
exists() { compgen -G "$1"; }

# Tools in sbin are not on every user's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

need gcc command -v cc
need libc6-dev test -e /usr/include/stdlib.h
need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
need runc command -v runc
need conntrack command -v conntrack
need iptables command -v iptables
need nftables command -v nft
need iproute2 command -v ip
need mount command -v mount
need openssl command -v openssl
need util-linux command -v nsenter
need containernetworking-plugins exists '/usr/lib/cni/bridge'
need busybox-static static_busybox
need redis-tools command -v redis-check-rdb
need postgresql exists '/usr/lib/postgresql/*/bin/initdb'
need pgbouncer command -v pgbouncer
need python3-psycopg /usr/bin/python3 -c 'import psycopg'
need nodejs command -v node
need npm command -v npm
need prometheus command -v promtool
need lua5.1 command -v lua5.1
need faketime exists '/usr/lib/*/faketime/libfaketime.so.1'

if ((${#missing[@]})); then
  echo "==> installing ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "error: this is not Debian or Ubuntu; install the equivalents of these packages: ${missing[*]}" >&2
    exit 1
  fi
  as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "error: not root and no sudo; as root, run: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  # The tests start their own servers: the package must not create and start another one.
  if [[ ! -e /etc/postgresql-common/createcluster.conf ]]; then
    "${as_root[@]}" mkdir -p /etc/postgresql-common
    echo 'create_main_cluster = false' |
      "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
  fi
  # No package may start its service: the pooler's and Prometheus's do by default. This file forbids it to all packages,
  # as long as the installation takes.
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
  fi
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    -o Dpkg::Options::=--force-confold "${missing[@]}"
  # Nor at the next boot.
  if [[ -d /run/systemd/system ]]; then
    for service in pgbouncer prometheus; do
      [[ " ${missing[*]} " != *" $service "* ]] || "${as_root[@]}" systemctl disable --now "$service.service"
    done
  fi
fi

# at_least <have> <want>: compares versions
at_least() { [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" == "$2" ]]; }

cd "$(dirname "$0")/.."
failed=0
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
  echo "error: cargo is missing; install Rust $rust_wanted or newer with rustup (https://rustup.rs)" >&2
  failed=1
elif rust=$(rustc --version | cut -d ' ' -f 2) && ! at_least "$rust" "$rust_wanted"; then
  echo "error: Rust $rust is too old, $rust_wanted or newer is needed; run: rustup update stable" >&2
  failed=1
elif ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
  echo "error: rustfmt or clippy is missing; run: rustup component add rustfmt clippy" >&2
  failed=1
fi
go_wanted=$(sed -n 's/^go \([0-9.]*\)$/\1/p' e2e/programs/go.mod 2>/dev/null)
if ! command -v go >/dev/null; then
  echo "error: go is missing; the test cluster is built from source: install Go ${go_wanted} or newer" \
    "(https://go.dev/doc/install)" >&2
  failed=1
elif go=$(go env GOVERSION) && [[ -n "$go_wanted" ]] && ! at_least "${go#go}" "$go_wanted"; then
  echo "error: $go is too old, go$go_wanted or newer is needed (https://go.dev/doc/install)" >&2
  failed=1
fi
exit "$failed"
