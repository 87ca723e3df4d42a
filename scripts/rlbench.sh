#!/usr/bin/env bash
# rlbench.sh COMMAND [FLAG…]: builds rlsidecar and rlbench, and runs a command of rlbench that measures rlsidecar:
#   targets   what rlsidecar costs, beside the least that each thing can cost, and how far that is from its targets;
#             docs/performance.md describes how to read it. About fifteen minutes, or half of one with --quick,
#             whose figures mean nothing.
#   overload  sends two and five times what rlsidecar can decide, over one connection and over 500. About four
#             minutes, on a machine without other work: with less than two free processors the figures mean nothing.
#   keys      sends 100,000 distinct keys a second for a minute, five times: allowed, denied and more than there is
#             room for in memory; allowed and denied on Redis. It fails if the series or the memory grow with the keys.
# Flags are those of rlbench COMMAND (--help).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -buildvcs=false -o "$dir/rlsidecar" ./cmd/rlsidecar
(cd bench && go build -buildvcs=false -o "$dir/rlbench" ./rlbench)
PATH="$PWD/.tools/bin:$PATH" "$dir/rlbench" "$1" --sidecar "$dir/rlsidecar" "${@:2}"
