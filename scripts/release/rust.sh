#!/usr/bin/env bash
# Installs the version of Rust that the Containerfile builds with, and makes it the one of this checkout.
#   rust.sh [options of rustup toolchain install...]
set -euo pipefail
cd "$(dirname "$0")/../.."

rust=$(sed -n 's/^FROM rust:\([0-9.]*\).*/\1/p' Containerfile)
rustup toolchain install "$rust" --profile minimal --no-self-update "$@"
rustup override set "$rust"
