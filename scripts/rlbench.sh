#!/usr/bin/env bash
# bench-compare.sh [FLAG…]: what rlsidecar costs, beside the least that each thing can cost, and how far
# that is from its targets; docs/performance.md says how to read it. About fifteen minutes, or half of
# one with --quick, whose figures mean nothing. Flags are those of rlbench targets (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
PATH="$PWD/.tools/bin:$PATH" "$dir/rlbench" targets --sidecar "$dir/rlsidecar" "$@"
