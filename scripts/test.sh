#!/usr/bin/env bash
# The tests of all code: formatting, the spelling of pages, vet, the Go tests with real servers and proxies
# (Redis, Envoy, NGINX, …), and the concurrent packages once more under the race detector.
# test-packaging.sh tests what is published.
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
observability_module() { (cd test/observability && go vet ./... && go test -vet=off -count=1 ./...); }
bench_module() { (cd bench && go vet ./... && go test -vet=off -count=1 ./...) && (cd bench/library && go vet ./...); }
race() {
  CGO_ENABLED=1 go test -vet=off -race -short -count=1 "${together[@]}" ./internal/server ./internal/redis ./pkg/backend/... \
    ./internal/nonblock ./internal/stores ./internal/limiter ./internal/grpcapi ./internal/h2grpc
}

scripts/install-tools.sh || exit
export PATH="$PWD/.tools/bin:$PATH"

step gofmt formatted
step spelling spelling
step vet go vet ./...
step tests tests
step observability observability_module
step bench bench_module
step race race
finish
