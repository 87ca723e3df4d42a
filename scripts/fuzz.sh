#!/usr/bin/env bash
# Runs each fuzz target for FUZZTIME, one after the other, and lists how many inputs each has executed. An
# argument selects targets by a pattern. Go writes a failing input into the package's testdata/fuzz: commit it
# with the fix. With KEEP=1 the script also copies the inputs that reached new code to that folder. Every later
# test runs all inputs in the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
pattern=${1:-.}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
found=0 code=0 all=0 list=""
while IFS=: read -r file target; do
  found=$((found + 1))
  package=./$(dirname "$file")
  echo "== $package $target"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$package" 2>&1 | tee "$log" || code=1
  executions=$(sed -nE 's/^fuzz: elapsed:.* execs: ([0-9]+) .*/\1/p' "$log" | tail -n 1)
  all=$((all + ${executions:-0}))
  list+=$(printf '%12d  %s %s' "${executions:-0}" "$package" "$target")$'\n'
  if [ -n "${KEEP:-}" ]; then
    mkdir -p "$package/testdata/fuzz/$target"
    cp -n "$(go env GOCACHE)/fuzz/$(go list "$package")/$target/"* "$package/testdata/fuzz/$target/"
  fi
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -soE '^func Fuzz[A-Za-z0-9_]*' /dev/null |
  sed 's/func //' | grep -E "$pattern")
[ $found -gt 0 ] || { echo "no fuzz target matches $pattern" >&2; exit 2; }
echo "== executions"
printf '%s%12d  all %d targets\n' "$list" "$all" "$found"
exit $code
