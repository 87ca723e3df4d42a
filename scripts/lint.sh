#!/usr/bin/env bash
# Runs the linters of .golangci.yml, go fix, go mod tidy and a check of the GitHub workflows. It changes no file,
# and fails if one of them would change a file or reports a mistake.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-tools.sh lint

code=0
.tools/bin/golangci-lint run ./... || code=1
go fix -diff ./... || code=1
go mod tidy -diff || code=1
.tools/bin/actionlint || code=1
exit $code
