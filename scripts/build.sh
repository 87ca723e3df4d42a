#!/usr/bin/env bash
# build.sh FILE: builds the program for releases and images: for Linux on GOARCH, and static. The same source and
# the same Go always produce the same bytes. The tests use the same program, but with debug information. Set
# VERSION and REVISION if the source comes without its Git history.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: build.sh FILE}

link="-s -w"
[ -z "${VERSION:-}" ] || link+=" -X 'main.linkedVersion=$VERSION' -X 'main.linkedRevision=${REVISION:-}'"
CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs=false -ldflags "$link" -o "$out" ./cmd/rlsidecar
