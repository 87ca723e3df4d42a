.DEFAULT_GOAL := help
.PHONY: help build run pictures test test-packaging simulate race check apidiff fmt docs docs-site fuzz mutate histories in-flight bench bench-compare size soak chart release tools clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile
build: ## build bin/rlsidecar
	@go build -o bin/ ./cmd/rlsidecar
run: build ## serve examples/quickstart.yaml from memory
	@bin/rlsidecar serve --config examples/quickstart.yaml
test: ## run the tests of all code; installs what they need
	@scripts/test.sh
test-packaging: ## run the race detector, go vet for each system, and the tests of images, releases and the chart; installs what they need
	@scripts/test-packaging.sh
simulate: ## simulate servers, networks and clocks for N seeds (default 20000), starting at seed FIRST (default 1)
	@go test ./test/simulate -count=1 -timeout 0 -run TestSimulation -v -seeds $(or $(N),20000) -first $(or $(FIRST),1) -commit $$(git rev-parse --short HEAD)
race: ## run all Go tests under the race detector
	@go test -race -count=1 ./...
check: ## run the tests, the linters, and a check that go.mod is tidy
	@scripts/test.sh && scripts/lint.sh
apidiff: ## list API changes below pkg/ since the last release; fails if CHANGELOG.md lacks an incompatible one
	@scripts/apidiff.sh
fmt: ## format the code with gofmt and go fix
	@gofmt -w bench cmd internal pkg scripts test && go fix ./...
docs-site: ## build the documentation site in dist/site; fails if a link has no target
	@scripts/docs-site.sh
docs: ## generate the parts of docs/ that come from the code: reference and pictures
	@UPDATE_DOCS=1 go test -count=1 -run 'Reference|Pictures' ./test/docgen ./internal/telemetry/metrics ./cmd/rlsidecar
pictures: ## make the pictures of README.md, from a running sidecar in Chromium
	@scripts/pictures.sh
fuzz: ## run each fuzz target for FUZZTIME (default 30s), and list the number of executions
	@scripts/fuzz.sh
mutate: ## plant faults by rule into the packages PKG, all of them or SAMPLE of each, and print those that no test notices. MUTATE has flags, such as -only take.lua
	@go run ./test/plant -sample $(or $(SAMPLE),0) $(MUTATE) $(PKG)
histories: ## check the decisions of concurrent sidecars on a failing Redis; each run takes HISTORIES (default 1m)
	@HISTORIES=$${HISTORIES:-1m} go test -vet=off -count=1 -v -timeout 3h ./test/histories
in-flight: ## send REQUESTS (default 12000) that end in every way through Envoy, NGINX, HAProxy and Caddy, and check that no slot is lost
	@RLSIDECAR_IN_FLIGHT=$(or $(REQUESTS),12000) go test -vet=off -count=1 -v -run TestInFlight ./test/e2e
bench: ## run the benchmarks of the packages, and load large configurations
	@scripts/bench.sh
bench-compare: ## measure the targets of docs/performance.md, each compared with its ceiling
	@scripts/rlbench.sh targets
size: ## print the size of each part with its budget, and write the column "lines" of ARCHITECTURE.md. LIST=-list names what is too large
	@go run ./scripts/size $(LIST)
soak: ## run traffic, reloads, faults and rotations for FOR (default 5m); memory must not grow, and counts must be exact
	@FOR=$${FOR:-5m} go test -vet=off -count=1 -timeout 0 -v ./test/soak
chart: ## test the Helm chart with Helm 3 and 4 in a real API server; the first run builds them from source
	@scripts/chart.sh
release: ## write archives, SBOMs and checksums into dist/, for the tag at this commit or for VERSION
	@scripts/release.sh
tools: ## install what the tests need
	@scripts/install-tools.sh
clean: ## remove the files that these targets create
	@rm -rf bin dist .tools
