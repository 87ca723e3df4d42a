#!/usr/bin/env bash
# The tests of all code: formatting, the spelling of pages, and the Go tests with real servers and proxies
# (Redis, Envoy, NGINX, …). test-packaging.sh has the rest: go vet for all systems, the race detector, and
# the tests of what is published.
set -uo pipefail
. "$(dirname "$0")/steps.sh"

# Without cgo, as it is released: the tests and the program that they start share what is compiled.
export CGO_ENABLED=0
# Most tests of the slow packages wait for other processes, so more of them run at once than there are
# processors. They come first; the quick packages fill the time in which they wait.
slow=(./test/e2e ./internal/redis ./internal/server)
together=(-p 4 -parallel 8 -timeout 30m)

formatted() {
  local files
  files=$(find . -name '*.go' -not -path './.*' -print0 | xargs -0 gofmt -l) || return
  [ -z "$files" ] || { echo "gofmt would change these; make fmt does it:"; echo "$files"; return 1; }
}

# Pages; TestLanguage in test/docgen checks their words and lines.
spelling() { find . -name '*.md' -not -path './.*' -not -path './dist/*' -print0 | xargs -0 codespell; }

others() { go list ./... | grep -vE '/test/(clients|e2e|image|release)$|/internal/redis$|/internal/server$'; }
tests() { go test -vet=off -count=1 "${together[@]}" "${slow[@]}" $(others); }

scripts/install-tools.sh || exit
export PATH="$PWD/.tools/bin:$PATH"

step gofmt formatted
step spelling spelling
step tests tests
finish
