#!/usr/bin/env bash
# Tests what `make release` has made: programs, images, chart and sums are what they must be; a registry on this machine
# gets them as a release, and gives back the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."
source scripts/helm.sh
source scripts/release/crane.sh

fail() {
  echo "error: $*" >&2
  exit 1
}
version=$(scripts/release/version.sh)
platform=$(dpkg --print-architecture)
out=$(mktemp -d)
registry_pid=
trap '[[ -z "$registry_pid" ]] || kill "$registry_pid"; rm -rf "$out" dist/pushed* dist/*.sigstore.json' EXIT

echo "==> the files"
[[ -e dist/SHA256SUMS ]] || fail "there is no release in dist; run: make release"
(cd dist && sha256sum --check --quiet SHA256SUMS)
[[ "$("dist/bin/$platform/leadergroup" version)" == "leadergroup $version" ]] || fail "the operator is not $version"
[[ "$("dist/bin/$platform/leadergroup-agent" --version)" == "leadergroup-agent $version" ]] || fail "the agent is not $version"
[[ "$("dist/bin/$platform/kubectl-leadergroup" --version)" == "kubectl-leadergroup $version" ]] || fail "the plugin is not $version"
scripts/release/check-dist.py "$version"
# Nothing tells where, and by whom, a program was built.
for program in dist/bin/*/*; do
  ! grep --text --only-matching --max-count=1 -F -e "$PWD/" -e "$HOME/" -e "$CARGO_TARGET_DIR/" "$program" ||
    fail "$program has a path of this machine"
done

echo "==> a registry on this machine"
go_tool github.com/google/go-containerregistry/cmd/crane v0.22.1
"$program" registry serve --address 127.0.0.1:0 >"$out/registry.log" 2>&1 &
registry_pid=$!
read -r port < <(timeout 20 tail -n +1 -f --pid="$registry_pid" "$out/registry.log" |
  sed -un 's/.*serving on port \([0-9]*\)$/\1/p') ||
  fail "the registry does not say where it serves: $(cat "$out/registry.log")"
registry=127.0.0.1:$port/leadergroup
scripts/release/push.sh "$registry"
# Once more: what is there already is not an error.
cp dist/pushed "$out/pushed"
scripts/release/push.sh "$registry" >/dev/null
cmp "$out/pushed" dist/pushed

echo "==> signatures"
# With a key and without the services of sigstore, which keep a log of all signatures: they are not on this machine.
go_tool github.com/sigstore/cosign/v3/cmd/cosign v3.1.3
cosign=$program
(
  export COSIGN_PASSWORD=
  cd "$out"
  "$cosign" generate-key-pair >/dev/null 2>&1
  "$cosign" signing-config create --out services.json
)
verify=(--key "$out/cosign.pub" --insecure-ignore-tlog)
COSIGN_PASSWORD='' scripts/release/sign.sh --key "$out/cosign.key" --signing-config "$out/services.json" >"$out/signed" 2>&1 ||
  fail "signing: $(cat "$out/signed")"
"$cosign" verify-blob "${verify[@]}" --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS 2>/dev/null
while read -r reference; do
  "$cosign" verify "${verify[@]}" --allow-http-registry "$reference" >/dev/null 2>&1 || fail "$reference is not signed"
done <dist/pushed

echo "==> the images, pulled"
while IFS=@ read -r reference digest; do
  name=${reference##*/}
  name=${name%:*}
  crane validate --remote "$registry/$name:$version" >&2
  crane pull --format=oci "$registry/$name:$version" "$out/$name"
  diff --recursive "dist/images/$name/blobs" "$out/$name/blobs" || fail "$name: what was pulled differs"
  config=$(crane config --platform "linux/$platform" "$registry/$name@$digest")
  python3 - "$config" "$version" <<'PYTHON'
import json, sys

config, version = json.loads(sys.argv[1]), sys.argv[2]
settings = config["config"]
assert settings["User"] == "65532:65532", settings
assert len(settings["Entrypoint"]) == 1, settings
assert settings["Labels"]["org.opencontainers.image.version"] == version, settings
PYTHON
done <dist/IMAGES

echo "==> a version is not replaced"
other=127.0.0.1:$port/other
crane copy "$registry/leadergroup-agent:$version" "$other/leadergroup:$version" 2>/dev/null
! scripts/release/push.sh "$other" >/dev/null 2>"$out/refused" || fail "push.sh has replaced an image"
grep -q 'is there already' "$out/refused" || fail "push.sh failed for another reason: $(cat "$out/refused")"

echo "==> the chart, pulled"
"$HELM" pull --plain-http "oci://$registry/charts/leadergroup" --version "$version" --destination "$out" >/dev/null
cmp "dist/leadergroup-$version.tgz" "$out/leadergroup-$version.tgz"
"$HELM" template test "$out/leadergroup-$version.tgz" >"$out/rendered"
grep -q "image: \"ghcr.io/leadergroup/leadergroup:$version\"" "$out/rendered" || fail "the chart names another image"
"$HELM" show chart "$out/leadergroup-$version.tgz" >"$out/chart.yaml"
for annotation in images changes license links crds; do
  grep -q "artifacthub.io/$annotation: " "$out/chart.yaml" || fail "the chart has no annotation artifacthub.io/$annotation"
done
echo "release: $(wc -l <dist/SHA256SUMS) files and $(wc -l <"$out/pushed") artifacts in a registry are what they must be"
