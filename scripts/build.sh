#!/usr/bin/env bash
# build.sh FILE: the program as it is released and put into the image: for Linux on GOARCH, static, and
# the same bytes wherever and whenever it is built from the same source with the same Go. It is what the
# tests test, but for its debug information. VERSION and REVISION are for where the source comes without
# its history.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: build.sh FILE}

link="-s -w"
[ -z "${VERSION:-}" ] || link+=" -X 'main.linkedVersion=$VERSION' -X 'main.linkedRevision=${REVISION:-}'"
CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs=false -ldflags "$link" -o "$out" ./cmd/rlsidecar
