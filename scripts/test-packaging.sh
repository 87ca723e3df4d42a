#!/usr/bin/env bash
# Runs the tests that test.sh does not run. For the code: the race detector for the concurrent packages, go vet for
# each system and architecture, and the tests of some packages on linux/386. For what is published:
#   - the dashboard and the alerts, and the benchmarks
#   - the image, which buildah builds and podman runs, with QEMU for the other architecture
#   - the release, of which two builds must have the same bytes, and its SBOM
#   - the HTTP APIs, and clients that are generated from their OpenAPI documents
#   - the Helm chart
#   - the documentation site
set -uo pipefail
. "$(dirname "$0")/steps.sh"

# docs/packaging.md lists these systems as supported, in addition to those with releases.
targets=(linux/386 darwin/arm64 freebsd/amd64 windows/amd64)

cross() { # cross TARGET: type-checks all packages and their tests for another system, with go vet
  GOOS=${1%/*} GOARCH=${1#*/} CGO_ENABLED=0 go vet ./...
}

# on_386 tests packages that could fail in 32-bit programs: their 64-bit atomics must be aligned, and some of their
# system calls have other numbers.
on_386() { GOARCH=386 CGO_ENABLED=0 go test -vet=off -count=1 ./internal/nonblock ./pkg/backend/memory; }

race() {
  CGO_ENABLED=1 go test -vet=off -race -short -count=1 -p 4 -parallel 8 -timeout 30m ./internal/server ./internal/redis \
    ./pkg/backend/... ./internal/nonblock ./internal/stores ./internal/limiter ./internal/grpcapi ./internal/h2grpc
}

observability_module() { (cd test/observability && go vet ./... && go test -vet=off -count=1 ./...); }
bench_module() { (cd bench && go vet ./... && go test -vet=off -count=1 ./...); }
chart_module() { (cd test/chart && go vet ./... && go test -vet=off -count=1 ./...); }

scripts/install-tools.sh && scripts/install-tools.sh packaging || exit
export PATH="$PWD/.tools/bin:$PATH"

step race race
step vet env CGO_ENABLED=0 go vet ./...
for target in "${targets[@]}"; do
  step "vet for $target" cross "$target"
done
[ "$(go env GOHOSTARCH)" != amd64 ] || step "tests on linux/386" on_386
step observability observability_module
step bench bench_module
# -p 1 runs the two packages one after the other, because both build several variants of the program.
step "image and release" go test -vet=off -count=1 -p 1 -timeout 60m ./test/image ./test/release
step "HTTP APIs as described" env EXAMPLES=100 go test -vet=off -count=1 -run AsDescribed ./test/e2e
step "clients of the HTTP API" go test -vet=off -count=1 -timeout 20m ./test/clients
step chart chart_module
step "documentation site" scripts/docs-site.sh
finish
