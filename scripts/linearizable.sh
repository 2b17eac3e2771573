#!/usr/bin/env bash
# Runs the clients of the lock through the scenarios of `leadergroup lock conform`, and lets porcupine check what they
# saw. Then a client that endangers the keys, whose history must be rejected.
#   linearizable.sh <rounds> <seed>   how often each client goes through the scenario in which several compete
set -euo pipefail
cd "$(dirname "$0")/.."
: "${CARGO_TARGET_DIR:?run this through make linearizable}"
rounds=$1 seed=$2
conform=("$CARGO_TARGET_DIR/debug/leadergroup" lock conform)
competition=(--only "clients that compete" --rounds)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOWORK=off CGO_ENABLED=0
go build -C lock/conformance/linearizable -o "$work/linearizable" .
go build -C lock/examples/go -o "$work/go-client" .
cp lock/examples/typescript/{lock.ts,*.json} "$work"
(cd "$work" && npm ci --silent --prefer-offline --no-audit --no-fund && npm run --silent build)

failed=0
files=()
# client <name> <command...>: records the histories of a client. It must keep the rules as well.
client() {
  local name=$1 part file
  shift
  for part in all competition; do
    file=$work/$name-$part.jsonl
    local options=(--history "$file" --seed "$seed")
    [[ $part == all ]] || options+=("${competition[@]}" "$rounds")
    echo "==> [$SECONDS s] $name: $part"
    "${conform[@]}" "${options[@]}" -- "$@" || failed=1
    files+=("$file")
  done
}
client rust "$CARGO_TARGET_DIR/debug/leadergroup-lock-rust-client"
client python /usr/bin/python3 lock/examples/python/lock.py
client go "$work/go-client"
client typescript node "$work/dist/lock.js"

echo "==> [$SECONDS s] a client with which two processes hold a key at a time"
"${conform[@]}" "${competition[@]}" 16 --seed "$seed" --history "$work/wrong.jsonl" -- \
  /usr/bin/python3 lock/conformance/tests/broken.py R1+R10 >/dev/null || (($? == 1)) || failed=1
if "$work/linearizable" "$work/wrong.jsonl" >"$work/wrong.log" || ! grep -m 3 ": no place for" "$work/wrong.log"; then
  echo "error: its history was accepted" >&2
  failed=1
fi

echo "==> [$SECONDS s] checking the histories"
"$work/linearizable" "${files[@]}" >"$work/checked.log" || failed=1
sed "s|$work/||" "$work/checked.log"
((failed == 0)) || { echo "failed after $SECONDS s"; exit 1; }
echo "linearizable: $(tail -n 1 "$work/checked.log"); $SECONDS s with the runs"
