#!/usr/bin/env bash
# The tests that test.sh leaves out. Of all code: go vet for each system and processor, and the concurrent
# packages under the race detector. Of what is published: dashboards and alerts, the benchmarks, the image
# (built by buildah, run by podman, and for the other processor by QEMU), the release (built twice, the
# same), its SBOM, clients generated from the OpenAPI documents, the Helm chart, the recipes for Kubernetes
# as the gateways' own code translates them, and the documentation as a site.
set -uo pipefail
. "$(dirname "$0")/steps.sh"

# docs/packaging.md promises these, beside those of which there are releases.
targets=(linux/386 darwin/arm64 freebsd/amd64 windows/amd64)

cross() { # cross TARGET: go vet type-checks all packages and their tests
  GOOS=${1%/*} GOARCH=${1#*/} CGO_ENABLED=0 go vet ./...
}

# 32-bit programs run here: 64-bit atomics must be aligned, and some system calls have other numbers.
on_386() { GOARCH=386 CGO_ENABLED=0 go test -vet=off -count=1 ./internal/nonblock ./pkg/backend/memory; }

race() {
  CGO_ENABLED=1 go test -vet=off -race -short -count=1 -p 4 -parallel 8 -timeout 30m ./internal/server ./internal/redis \
    ./pkg/backend/... ./internal/nonblock ./internal/stores ./internal/limiter ./internal/grpcapi ./internal/h2grpc
}

observability_module() { (cd test/observability && go vet ./... && go test -vet=off -count=1 ./...); }
bench_module() { (cd bench && go vet ./... && go test -vet=off -count=1 ./...) && (cd bench/library && go vet ./...); }
gateways_module() { (cd test/cluster/gateways/contour && go vet ./... && CGO_ENABLED=0 go test -vet=off -count=1 ./...); }
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
# One after the other: both build the program in several ways.
step "image and release" go test -vet=off -count=1 -p 1 -timeout 60m ./test/image ./test/release
step "HTTP APIs as described" env EXAMPLES=100 go test -vet=off -count=1 -run AsDescribed ./test/e2e
step "clients of the HTTP API" go test -vet=off -count=1 -timeout 20m ./test/clients
step chart chart_module
step "recipes by the gateways' code" gateways_module
step "documentation site" scripts/docs-site.sh
finish
