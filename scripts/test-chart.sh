#!/usr/bin/env bash
# Tests of the chart: lint, what each file of values in charts/leadergroup/ci renders, and what is refused. With
# --server, the API server of KUBECONFIG also checks each rendering, without applying it.
set -euo pipefail
cd "$(dirname "$0")/.."

chart=charts/leadergroup
# Where alerts link to by default.
runbooks=$(sed -n 's/^home: //p' $chart/Chart.yaml)/blob/main/docs/runbooks.md
source scripts/helm.sh
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

failed=0
checks=0
with_rules=0
command -v promtool >/dev/null || { echo "error: promtool is missing; run: make prerequisites" >&2; exit 1; }
complain() {
  echo "error: $*" >&2
  failed=1
}

render() { # render <values> <output>: as `helm install test --namespace test` would, with the APIs that the file names
  local apis=()
  while IFS= read -r api; do apis+=(--api-versions "$api"); done < <(sed -n 's/^# with the API: //p' "$1")
  "$HELM" template test "$chart" --namespace test --values "$1" \
    --api-versions monitoring.coreos.com/v1 "${apis[@]}" \
    --api-versions admissionregistration.k8s.io/v1/MutatingAdmissionPolicy >"$2" 2>"$2.err"
}

# Keys that a mapping has twice, which Helm renders without a word: some parsers refuse them, others take the last one.
duplicate_keys() { # duplicate_keys <YAML in block style>
  awk '
    function forget(column, key) { for (key in seen) if (seen[key] >= column) delete seen[key] }
    { match($0, /^ */); indent = RLENGTH }
    /^---/ { forget(0); scalar = -1; next }
    /^ *(#|$)/ { next }
    scalar >= 0 && indent > scalar { next }
    {
      scalar = -1
      rest = substr($0, indent + 1)
      forget(indent + 1)
      while (rest ~ /^- /) { # a new item of a list, and so a new mapping
        owner = indent
        match(rest, /^- +/)
        rest = substr(rest, RLENGTH + 1)
        forget(indent + 1)
        indent += RLENGTH
      }
      if (match(rest, /^("[^"]*"|[^ "{[&*!|>][^ ]*):( |$)/)) {
        key = indent " " substr(rest, 1, RLENGTH)
        gsub(/: ?$|"/, "", key)
        if (key in seen) { print FILENAME ":" FNR ": " $0; bad = 1 }
        seen[key] = owner = indent
      }
      if (rest ~ /[|>][-+0-9]*$/) scalar = owner
    }
    END { exit bad }' "$1"
}

# The check itself: one mapping has a key twice, and others may have the same key.
printf '%s\n' 'a:' '  b: 1' '  c: |' '    d: 3' '    d: 4' 'e:' '  - b: 5' '    f: {}' '  - b: 6' >"$out/keys"
duplicate_keys "$out/keys" >/dev/null || complain "different keys count as the same"
printf '%s\n' '---' 'e:' '  - b: 7' '    f: 8' '    "b": 9' >>"$out/keys"
! duplicate_keys "$out/keys" >/dev/null || complain "a key that a mapping has twice is not found"

for values in "$chart"/ci/*-values.yaml; do
  name=$(basename "$values" -values.yaml)
  "$HELM" lint --strict --quiet --namespace test --values "$values" "$chart" >"$out/lint" 2>&1 ||
    complain "$name: helm lint: $(cat "$out/lint")"
  if ! render "$values" "$out/$name.yaml"; then
    complain "$name: $(cat "$out/$name.yaml.err")"
    continue
  fi
  checks=$((checks + 1))
  duplicate_keys "$out/$name.yaml" >&2 || complain "$name: a mapping has a key twice"
  while IFS= read -r text; do
    checks=$((checks + 1))
    grep -qF -- "$text" "$out/$name.yaml" || complain "$name: must contain, but does not: $text"
  done < <(sed -n 's/^# must contain: //p' "$values")
  while IFS= read -r text; do
    checks=$((checks + 1))
    # Match to the end of the line: `kind: Service` must not find `kind: ServiceAccount`.
    ! grep -qE -- "$(sed 's/[][\.*^$(){}?+|/]/\\&/g' <<<"$text")\$" "$out/$name.yaml" ||
      complain "$name: must not contain, but does: $text"
  done < <(sed -n 's/^# must not contain: //p' "$values")
  # Every container, including init containers, meets the restricted Pod Security Standard.
  containers=$(grep -cE '^ +image: ' "$out/$name.yaml" || true)
  dropped=$(grep -cE '^ +drop: \[ALL\]$' "$out/$name.yaml" || true)
  readonly=$(grep -cE '^ +readOnlyRootFilesystem: true$' "$out/$name.yaml" || true)
  [[ "$containers" == "$dropped" && "$containers" == "$readonly" ]] ||
    complain "$name: $containers containers, of which $dropped drop all capabilities and $readonly have a read-only root"
  # Prometheus accepts the alert rules: their expressions parse, and their labels and templates are valid.
  awk 'BEGIN { RS = "---\n" } /(^|\n)kind: PrometheusRule\n/' "$out/$name.yaml" | sed '1,/^spec:$/d; s/^  //' >"$out/rules"
  if [[ -s "$out/rules" ]]; then
    checks=$((checks + 1))
    with_rules=$((with_rules + 1))
    promtool check rules "$out/rules" >"$out/promtool" 2>&1 || complain "$name: promtool: $(cat "$out/promtool")"
    # Each alert fires when it should, and none in a quiet state.
    cp "$chart/ci/alert-tests.yaml" "$out/alert-tests.yaml"
    promtool test rules "$out/alert-tests.yaml" >"$out/promtool" 2>&1 || complain "$name: alerts: $(cat "$out/promtool")"
    while IFS= read -r alert; do
      checks=$((checks + 1))
      grep -qF "alertname=\"$alert\"" "$chart/ci/alert-tests.yaml" || complain "$name: no test makes the alert $alert fire"
      grep -qx "## $alert" docs/runbooks.md || complain "$name: docs/runbooks.md has no section $alert"
      url=$(sed -n 's/^ *runbookUrl: //p' "$values")
      grep -qF "runbook_url: \"${url:-$runbooks}#${alert,,}\"" "$out/rules" ||
        complain "$name: $alert has no link to its runbook"
    done < <(sed -n 's/^ *- alert: //p' "$out/rules")
  fi
  # A user's rights are never widened by wildcards; the FlowSchema's and scale's patterns are no rights.
  awk '/^kind:/ { kind = $2 } kind ~ /^(Cluster)?Role$/ && /"\*"|\[\*\]/ { print FILENAME ":" FNR ": " $0; bad = 1 }
    END { exit bad }' "$out/$name.yaml" >&2 || complain "$name: wildcard in a role"
  if [[ "${1:-}" == --server ]]; then
    # The namespaces need not exist for a dry run; custom resources of other projects may be unknown to the cluster.
    sed -E 's/^( *namespace: )(test|team-[ab])$/\1default/' "$out/$name.yaml" |
      awk 'BEGIN { RS = "---\n" } !/monitoring\.coreos\.com|postgresql\.cnpg\.io/ { print "---\n" $0 }' >"$out/$name.dry.yaml"
    "${KUBECTL:-kubectl}" apply --dry-run=server -f "$out/$name.dry.yaml" >"$out/apply" 2>&1 ||
      complain "$name: the API server refuses it: $(cat "$out/apply")"
    checks=$((checks + 1))
  fi
done

# Which release's metrics an alert looks for can be chosen.
for matchers in '' 'job="lg"'; do
  checks=$((checks + 1))
  "$HELM" template test "$chart" --namespace test --set metrics.prometheusRule.enabled=true \
    --set-string "metrics.prometheusRule.matchers=$matchers" --show-only templates/metrics.yaml >"$out/matchers" 2>&1 ||
    complain "matchers: $(cat "$out/matchers")"
  grep -qF "absent(leadergroup_build_info{${matchers//\"/\\\"}})" "$out/matchers" ||
    complain "the matchers $matchers are not those of LeaderGroupOperatorAway"
done

((with_rules > 0)) || complain "no set of values renders the alert rules, so that promtool had nothing to check"

for values in "$chart"/ci/refused/*.yaml; do
  name=$(basename "$values" .yaml)
  expected=$(sed -n 's/^# refused with: //p' "$values")
  checks=$((checks + 1))
  if render "$values" "$out/refused.yaml"; then
    complain "$name: must be refused, but is accepted"
  elif ! grep -qF -- "$expected" "$out/refused.yaml.err"; then
    complain "$name: refused, but not with: $expected: $(cat "$out/refused.yaml.err")"
  fi
done

# The notes after an installation name the binding that somebody else has to create.
"$HELM" install test "$chart" --namespace test --dry-run=client --values "$chart/ci/namespaced-values.yaml" \
  >"$out/notes" 2>&1 || complain "notes: $(cat "$out/notes")"
for text in 'helm test test -n test' 'kubectl -n test logs test-leadergroup-test -c ready' \
  'kubectl -n team-c create rolebinding test-leadergroup-elsewhere' \
  '--clusterrole=test-leadergroup' '--serviceaccount=test:test-leadergroup'; do
  checks=$((checks + 1))
  grep -qF -- "$text" "$out/notes" || complain "notes: must contain, but do not: $text"
done

# An upgrade of the chart must not restart the database that it brings.
newer=$out/newer
cp -r "$chart" "$newer"
sed -i -E 's/^(version|appVersion): .*/\1: 99.9.9/' "$newer/Chart.yaml"
database_pod() { # database_pod <chart>: the pod template of the bundled PostgreSQL
  "$HELM" template test "$1" --namespace test --values "$chart/ci/default-values.yaml" \
    --show-only templates/postgresql.yaml | sed -n '/^  template:/,/^  [a-z]/p'
}
checks=$((checks + 1))
database_pod "$chart" >"$out/database"
database_pod "$newer" >"$out/database-newer"
[[ -s "$out/database" ]] || complain "no pod template of the bundled PostgreSQL was found"
diff -u "$out/database" "$out/database-newer" >&2 || complain "an upgrade of the chart restarts the bundled PostgreSQL"

scripts/chart-readme.sh --check || failed=1

# The program accepts every variable that the chart sets (it refuses others at start). LEADERGROUP_POD is a variable of
# the agent.
operator=${LEADERGROUP:-${CARGO_TARGET_DIR:-target}/debug/leadergroup}
help=$("$operator" run --help)
while IFS= read -r variable; do
  checks=$((checks + 1))
  grep -qF -- "[env: $variable]" <<<"$help" || complain "the chart sets $variable, which is no setting of the operator"
done < <(grep -ohE '\bLEADERGROUP_[A-Z_]+' "$out"/*.yaml | grep -vx LEADERGROUP_POD | sort -u)

# Prometheus accepts every expression of the dashboard, with values for Grafana's variables.
python3 - "$chart/dashboards/leadergroup.json" >"$out/dashboard" <<'PYTHON'
import json, sys

board = json.load(open(sys.argv[1]))
queries = [target for panel in board["panels"] for target in panel["targets"]] + board["annotations"]["list"]
values = {"$__rate_interval": "5m", "$namespace": ".*", "$group": ".*"}
for number, query in enumerate(queries):
    expression = query["expr"]
    for name, value in values.items():
        expression = expression.replace(name, value)
    queries[number] = {"record": f"query:{number}", "expr": expression}
print(json.dumps({"groups": [{"name": "dashboard", "rules": queries}]}))
PYTHON
checks=$((checks + 1))
promtool check rules "$out/dashboard" >"$out/promtool" 2>&1 || complain "dashboard: promtool: $(cat "$out/promtool")"

# The operator has every metric that the alerts and the dashboard use. The code registers them without the common prefix
# and without the suffixes of counters and histograms.
while IFS= read -r metric; do
  checks=$((checks + 1))
  grep -rqF -- "\"$metric\"" src/telemetry || grep -qF -- "\"${metric#lock_}\"" lock/src/prometheus.rs ||
    complain "the chart's alerts or dashboard use leadergroup_$metric, which the operator does not have"
done < <(grep -ohE 'leadergroup_[a-z_]+[a-z]' "$chart/templates/metrics.yaml" "$chart/dashboards/leadergroup.json" |
  sed -E 's/^leadergroup_//; s/_(total|bucket|sum|count|info)$//; s/_seconds$//' | grep -vx dashboard | sort -u)

((failed == 0)) || exit 1
echo "chart: $(ls "$chart"/ci/*-values.yaml | wc -l) sets of values rendered, $checks checks passed"
