#!/usr/bin/env bash
# Measures costs: the benchmarks of the packages, and large configurations. docs/performance.md explains the figures.
# BENCHTIME (default 0.2s) is the duration of each package benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

echo "$(nproc) cores,$(awk -F: '/^model name/ {print $2; exit}' /proc/cpuinfo), $(go env GOVERSION) $(go env GOOS)/$(go env GOARCH), load $(cut -d' ' -f1 /proc/loadavg)"

# shorten prints for each benchmark: package, name without the number of cores, and ns, bytes and allocations per
# operation.
shorten() {
  awk '/^pkg:/ { package = $2; sub(/.*rlsidecar\//, "", package) }
    /^(FAIL.|--- FAIL|panic|#)|_test\.go:/ { print } # failures, and the lines that explain them
    /^Benchmark/ {
      name = $1; sub(/^Benchmark/, "", name); sub(/-[0-9]+$/, "", name)
      ns = bytes = allocs = "-"
      for (i = 3; i < NF; i++) {
        if ($(i+1) == "ns/op") ns = $i
        if ($(i+1) == "B/op") bytes = $i
        if ($(i+1) == "allocs/op") allocs = $i
      }
      printf "%-22s %-44s %10s ns %7s B %5s allocs\n", package, name, ns, bytes, allocs
    }'
}
code=0
echo
go test -run '^$' -bench . -benchmem -benchtime "${BENCHTIME:-0.2s}" \
  ./pkg/algorithms ./pkg/descriptors ./pkg/backend/memory ./pkg/ratelimit ./internal/limiter ./internal/grpcapi 2>&1 | shorten || code=1
echo

go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
echo
for shape in flat deep domain; do
  "$dir/rlbench" size --shape "$shape" --sidecar "$dir/rlsidecar" || code=1
done
exit $code
