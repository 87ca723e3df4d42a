#!/usr/bin/env bash
# All tests: formatting, vet, the Go tests (those against the real Envoy among them), and what is
# concurrent once more under the race detector. The failures are listed again at the end.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

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

formatted() {
  local files
  files=$(find . -name '*.go' -not -path './.*' -print0 | xargs -0 gofmt -l) || return
  [ -z "$files" ] || { echo "gofmt would change these; make fmt does it:"; echo "$files"; return 1; }
}

chart_module() { (cd test/chart && go vet ./... && go test -count=1 ./...); }
bench_module() { (cd bench && go vet ./... && go test -count=1 ./...); }

scripts/install-tools.sh || exit
export PATH="$PWD/.tools/bin:$PATH"

step gofmt formatted
step vet go vet ./...
step tests go test -count=1 ./...
step bench bench_module
step chart chart_module
step race go test -race -short -count=1 ./pkg/backend/... ./pkg/nonblock ./internal/limiter ./internal/grpcapi ./internal/h2grpc ./internal/server

if [ ${#failed[@]} -gt 0 ]; then
  echo
  grep -E '^ *--- FAIL|^FAIL[[:space:]]|^panic:|^WARNING: DATA RACE' "$log" | head -n 100
  echo "FAILED: ${failed[*]}"
  exit 1
fi
