.DEFAULT_GOAL := help
.PHONY: help build run test test-packaging simulate race check apidiff fmt docs docs-site fuzz mutate histories bench bench-compare overload keys soak chart release tools clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile
build: ## bin/rlsidecar
	@go build -o bin/ ./cmd/rlsidecar
run: build ## serve examples/quickstart.yaml from memory
	@bin/rlsidecar serve --config examples/quickstart.yaml
test: ## the tests of all code; installs what they need
	@scripts/test.sh
test-packaging: ## the race detector, go vet for each system, and the tests of images, releases and the chart; installs what they need
	@scripts/test-packaging.sh
simulate: ## the client side with simulated servers, networks and clocks: N seeds from FIRST on (20000 from 1)
	@go test ./test/simulate -count=1 -timeout 0 -run TestSimulation -v -seeds $(or $(N),20000) -first $(or $(FIRST),1) -commit $$(git rev-parse --short HEAD)
race: ## all Go tests under the race detector
	@go test -race -count=1 ./...
check: ## test, then the linters and the tidiness of go.mod
	@scripts/test.sh && scripts/lint.sh
apidiff: ## changes of the packages below pkg/ since the last release; incompatible ones must be in CHANGELOG.md
	@scripts/apidiff.sh
fmt: ## gofmt, and the rewrites of go fix
	@gofmt -w bench cmd internal pkg scripts test && go fix ./...
docs-site: ## dist/site: the documentation as a site; fails for a link that leads nowhere
	@scripts/docs-site.sh
docs: ## what docs/ takes from the code: reference and pictures
	@UPDATE_DOCS=1 go test -count=1 -run 'Reference|Pictures' ./test/docgen ./internal/telemetry/metrics ./cmd/rlsidecar
fuzz: ## each fuzz target for FUZZTIME (default 30s); states the executions of each
	@scripts/fuzz.sh
mutate: ## plant faults, one at a time; fails if tests do not notice one. MUTATE=-write writes the table
	@go run ./test/mutation $(MUTATE)
histories: ## concurrent sidecars on failing Redis, each run for HISTORIES (default 1m)
	@HISTORIES=$${HISTORIES:-1m} go test -vet=off -count=1 -v -timeout 3h ./test/histories
bench: ## benchmarks: the packages', and against peers
	@scripts/bench.sh
bench-compare: ## the targets of docs/performance.md, each beside its ceiling
	@scripts/rlbench.sh targets
keys: ## 100,000 distinct keys a second for a minute, in memory and on Redis: memory and series must stay flat
	@scripts/rlbench.sh keys
overload: ## five times what a server can decide, and 10,000 idle connections
	@scripts/rlbench.sh overload
soak: ## traffic, reloads, faults and rotations for FOR (default 5m); memory must stay flat and counts exact
	@FOR=$${FOR:-5m} go test -vet=off -count=1 -timeout 0 -v ./test/soak
chart: ## the Helm chart under Helm 3 and 4, in a real API server; the first time it builds them
	@scripts/chart.sh
release: ## dist/: archives, SBOMs and checksums of the tag at this commit, or of VERSION
	@scripts/release.sh
tools: ## only install what the tests need
	@scripts/install-tools.sh
clean: ## remove what these made
	@rm -rf bin dist .tools
