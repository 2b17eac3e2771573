#!/usr/bin/env bash
# Logs crane, Helm and cosign in to a registry. The password is read from standard input.
#   login.sh <registry> <user>
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/helm.sh
source scripts/release/crane.sh

read -r password
crane auth login "$1" --username "$2" --password-stdin <<<"$password"
"$HELM" registry login "$1" --username "$2" --password-stdin <<<"$password"
