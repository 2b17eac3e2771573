#!/usr/bin/env bash
# Runs the release of dist on the test cluster: its chart with the chart's own values, its images, a switchover, and the
# agent. Only the PostgreSQL image is the test cluster's. Takes the cluster down at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${CARGO_TARGET_DIR:?run this through make release-test}"

fail() {
  echo "error: $*" >&2
  exit 1
}
e2e=$CARGO_TARGET_DIR/debug/leadergroup-e2e
version=$(scripts/release/version.sh)
! "$e2e" status >/dev/null 2>&1 || fail "a test cluster is running; stop it with: make cluster-down"
out=$(mktemp -d)
trap '"$e2e" down; rm -rf "$out"' EXIT

"$e2e" up >"$out/environment"
source "$out/environment"
while IFS=@ read -r reference _; do
  name=${reference##*/}
  name=${name%:*}
  tar --create --directory "dist/images/$name" --file "$out/$name.tar" .
  "$e2e" load "$out/$name.tar"
done <dist/IMAGES

echo "==> the chart"
helm install leadergroup "dist/leadergroup-$version.tgz" --namespace leadergroup --create-namespace --wait --timeout 3m \
  --set postgresql.image.tag=15 >/dev/null
operator=$(kubectl --namespace leadergroup get pods --selector app.kubernetes.io/component=operator \
  --output 'jsonpath={.items[*].spec.containers[*].image}')
for image in $operator; do
  [[ "$image" == "ghcr.io/leadergroup/leadergroup:$version" ]] || fail "an operator runs $image"
done
[[ -n "$operator" ]] || fail "no operator runs"
[[ "$(kubectl --namespace leadergroup exec deployment/leadergroup -- leadergroup version)" == "leadergroup $version" ]] ||
  fail "the operator is not $version"

echo "==> a switchover"
active() { kubectl get pods --selector "app=$1,leadergroup.dev/role=active" --output name; }
kubectl apply --filename examples/ >/dev/null
kubectl wait --for=condition=Ready leadergroup/hello --timeout=2m
before=$(active hello)
kubectl annotate leadergroup hello leadergroup.dev/switchover=release-test >/dev/null
kubectl wait --for=jsonpath='{.status.switchover.request}'=release-test leadergroup/hello --timeout=2m
kubectl wait --for=condition=Ready leadergroup/hello --timeout=2m
after=$(active hello)
[[ -n "$before" && "$after" == pod/* && "$before" != "$after" ]] || fail "the active pod was $before, and is $after"
answer=$(kubectl exec deployment/hello -- wget -qO- http://hello)
[[ "pod/$answer" == "$after" ]] || fail "$answer answers, and the active pod is $after"

echo "==> the agent"
kubectl apply --filename examples/more/agent.yaml >/dev/null
kubectl wait --for=condition=Ready leadergroup/clockwork --timeout=2m
worker=$(active clockwork)
grep --max-count=1 '^term [0-9]*: it is' < <(timeout 60 kubectl logs --follow "$worker" --container clockwork) ||
  fail "the agent's program does not run in $worker"

kubectl delete --filename examples/more/agent.yaml --filename examples/ >/dev/null
helm uninstall leadergroup --namespace leadergroup --wait >/dev/null
echo "the release was installed, switched over from $before to $after, and was uninstalled"
