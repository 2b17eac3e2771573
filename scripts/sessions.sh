# shellcheck shell=bash
# Sourced by scripts that run jobs side by side. They all end with the script.

# Each parallel job has its own session, so that one signal reaches all of its processes and no others. Linux divides the
# CPU time among the sessions first (autogroups); niceness counts only within a session.
logs=$(mktemp -d)
declare -A sessions=()
finish() {
  for session in "${sessions[@]}"; do
    kill -- "-$session" 2>/dev/null || true
  done
  rm -rf "$logs"
}
# beside <what> <niceness> <command...>: in the background
beside() {
  local what=$1 niceness=$2
  shift 2
  # `join` may read it before the job has begun.
  : >"$logs/$what"
  # shellcheck disable=SC2016 # these are the inner shell's variables
  setsid bash -c '(($0 == 0)) || echo "$0" 2>/dev/null >/proc/self/autogroup || true; exec nice -n "$0" "$@"' \
    "$niceness" "$@" >"$logs/$what" 2>&1 &
  sessions[$what]=$!
}
# join <what>: waits for the job, and prints its output. Fails if the job failed
join() {
  local tail_pid status=0
  tail -n +1 -f --pid="${sessions[$1]}" "$logs/$1" &
  tail_pid=$!
  wait "${sessions[$1]}" || status=$?
  wait "$tail_pid" || true
  # With double quotes, a name with an apostrophe stays.
  unset 'sessions[$1]'
  ((status == 0)) || echo "error: $1 failed; the output is above" >&2
  return "$status"
}
# apart <what> <niceness> <command...>: in a session of its own, and waits for it
apart() {
  beside "$@"
  join "$1"
}
trap finish EXIT
trap 'exit 130' INT TERM
