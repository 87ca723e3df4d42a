#!/usr/bin/env bash
# rlbench.sh COMMAND [FLAG…]: builds rlsidecar and rlbench, and runs a command of rlbench that measures rlsidecar:
#   targets   compares the cost of each function with the least possible cost, and with its target. docs/performance.md
#             explains the figures. It takes about fifteen minutes. With --quick it takes half a minute, but its figures
#             mean nothing.
#   overload  sends two and five times as many requests as rlsidecar can decide, over one connection and over 500. It
#             takes about eight minutes. It needs two processors without other work; otherwise its figures mean nothing.
#   attacks   measures a client with few requests beside each of several attacks. It needs root.
# The flags are those of rlbench COMMAND (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
PATH="$PWD/.tools/bin:$PATH" "$dir/rlbench" "$1" --sidecar "$dir/rlsidecar" "${@:2}"
