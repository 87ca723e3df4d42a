#!/usr/bin/env bash
# rlbench.sh COMMAND [FLAG…]: builds rlsidecar and rlbench, and runs a command of rlbench that measures rlsidecar:
#   targets   compares the cost of each function with the least possible cost, and with its target. docs/performance.md
#             explains the figures. It takes about fifteen minutes. With --quick it takes half a minute, but its figures
#             mean nothing.
#   overload  sends two and five times as many requests as rlsidecar can decide, over one connection and over 500. It
#             takes about eight minutes. It needs two processors without other work; otherwise its figures mean nothing.
#   keys      sends 100,000 distinct keys a second for a minute, in five runs: in memory, keys that are allowed, that are
#             denied, and for which there is no room; on Redis, keys that are allowed and that are denied. It fails if the
#             number of series or the memory grows with the keys.
# The flags are those of rlbench COMMAND (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
PATH="$PWD/.tools/bin:$PATH" "$dir/rlbench" "$1" --sidecar "$dir/rlsidecar" "${@:2}"
