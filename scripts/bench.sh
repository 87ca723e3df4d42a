#!/usr/bin/env bash
# Measures costs: the benchmarks of the packages, rlsidecar compared with an empty gRPC server, and large
# configurations. If wrk and nginx are installed, it also compares the HTTP listener with a bare HTTP handler. It
# takes about four minutes. docs/performance.md explains the figures. The script passes its arguments to rlbench
# compare (--help lists them). BENCHTIME (default 0.2s) is the duration of each package benchmark.
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
(cd bench/library && go test -run '^$' -bench . -benchmem -benchtime "${BENCHTIME:-0.2s}" . 2>&1) | shorten || code=1

go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
echo
"$dir/rlbench" compare --ceiling grpc-go --sidecar "$dir/rlsidecar" "$@" || code=1
echo
for shape in flat deep domain; do
  "$dir/rlbench" size --shape "$shape" --sidecar "$dir/rlsidecar" || code=1
done
PATH="$PATH:/usr/sbin"
if command -v wrk >/dev/null && command -v nginx >/dev/null; then
  echo
  "$dir/rlbench" http --sidecar "$dir/rlsidecar" --nginx-conf examples/nginx/nginx.conf || code=1
else
  echo "wrk or nginx is missing: the HTTP listener is not measured"
fi
exit $code
