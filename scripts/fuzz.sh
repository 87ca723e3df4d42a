#!/usr/bin/env bash
# Runs each fuzz target for FUZZTIME, one after the other; an argument chooses targets by a pattern.
# A failing input is left in the package's testdata/fuzz: commit it with the fix. With KEEP=1 the inputs
# that reached something new are put there too: every test runs them from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
pattern=${1:-.}

found=0 code=0
while IFS=: read -r file target; do
  found=$((found + 1))
  echo "== $(dirname "$file") $target"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "./$(dirname "$file")" || code=1
  if [ -n "${KEEP:-}" ]; then
    mkdir -p "$(dirname "$file")/testdata/fuzz/$target"
    cp -n "$(go env GOCACHE)/fuzz/$(go list "./$(dirname "$file")")/$target/"* "$(dirname "$file")/testdata/fuzz/$target/"
  fi
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -soE '^func Fuzz[A-Za-z0-9_]*' /dev/null |
  sed 's/func //' | grep -E "$pattern")
[ $found -gt 0 ] || { echo "no fuzz target matches $pattern" >&2; exit 2; }
exit $code
