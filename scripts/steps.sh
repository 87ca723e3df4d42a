# steps.sh is sourced by test.sh and test-packaging.sh. It runs steps, prints a line for each package and each
# step, and lists the failures again at the end.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()

step() { # step NAME COMMAND…
  local name=$1 from=$SECONDS
  shift
  echo "== $name"
  "$@" 2>&1 | grep -v 'no test files' | tee -a "$log"
  local codes=("${PIPESTATUS[@]}")
  echo "-- $name: $((SECONDS - from)) s"
  [ "${codes[0]}" -eq 0 ] || failed+=("$name")
}

finish() { # fails if a step has failed
  echo "-- all: $SECONDS s"
  [ ${#failed[@]} -gt 0 ] || return 0
  echo
  grep -E '^ *--- FAIL|^FAIL[[:space:]]|^panic:|^WARNING: DATA RACE' "$log" | head -n 100
  echo "FAILED: ${failed[*]}"
  return 1
}
