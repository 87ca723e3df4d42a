#!/usr/bin/env bash
# The linters of .golangci.yml, the rewrites that go fix would make, a tidy go.mod, and GitHub's workflows.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-tools.sh lint

code=0
.tools/bin/golangci-lint run ./... || code=1
go fix -diff ./... || code=1
go mod tidy -diff || code=1
.tools/bin/actionlint || code=1
exit $code
