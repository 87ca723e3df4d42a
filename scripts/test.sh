#!/usr/bin/env bash
# Runs the tests of all code: formatting, the spelling of pages, and the Go tests with real servers and proxies
# (Redis, Envoy, NGINX, …). test-packaging.sh runs the rest: go vet for all systems, the race detector, and the
# tests of what is published.
set -uo pipefail
. "$(dirname "$0")/steps.sh"

# Releases are built without cgo. With the same setting, the tests and the program that they start share the build
# cache.
export CGO_ENABLED=0
# Most tests of the slow packages wait for other processes, so more of them run at once than there are processors. The
# slow packages come first; the quick packages use the processors while the slow ones wait.
slow=(./test/e2e ./internal/redis ./internal/server)
together=(-p 4 -parallel 8 -timeout 30m)

formatted() {
  local files
  files=$(find . -name '*.go' -not -path './.*' -print0 | xargs -0 gofmt -l) || return
  [ -z "$files" ] || { echo "gofmt would change these; make fmt does it:"; echo "$files"; return 1; }
}

# spelling checks the pages. TestLines in test/docgen checks their line lengths.
spelling() { find . -name '*.md' -not -path './.*' -not -path './dist/*' -print0 | xargs -0 codespell; }

others() { go list ./... | grep -vE '/test/(clients|e2e|image|release)$|/internal/redis$|/internal/server$'; }
tests() { go test -vet=off -count=1 "${together[@]}" "${slow[@]}" $(others); }

scripts/install-tools.sh || exit
export PATH="$PWD/.tools/bin:$PATH"

step gofmt formatted
step spelling spelling
step tests tests
finish
