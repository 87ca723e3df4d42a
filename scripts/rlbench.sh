#!/usr/bin/env bash
# rlbench.sh COMMAND [FLAG…]: builds rlsidecar and rlbench, and runs a command of rlbench that measures rlsidecar:
#   targets  compares the cost of each function with the least possible cost, and with its target. docs/performance.md
#            explains the figures. It takes about fifteen minutes. With --quick it takes half a minute, but its figures
#            mean nothing.
#   size     measures what a configuration of 100,000 limits costs.
# The flags are those of rlbench COMMAND (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
PATH="$PWD/.tools/bin:$PATH" "$dir/rlbench" "$1" --sidecar "$dir/rlsidecar" "${@:2}"
