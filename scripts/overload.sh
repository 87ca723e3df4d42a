#!/usr/bin/env bash
# overload.sh [FLAG…]: sends rlsidecar two and five times what it can decide, from one connection and from 500, and
# measures what 10,000 idle connections cost. About four minutes, on a machine without other work: with less
# than two free processors the figures mean nothing. Flags are those of rlbench overload (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
echo "$(nproc) cores, $(go env GOVERSION), load $(cut -d' ' -f1 /proc/loadavg)"
"$dir/rlbench" overload --sidecar "$dir/rlsidecar" "$@"
echo
"$dir/rlbench" idle --sidecar "$dir/rlsidecar" --settle 40s
