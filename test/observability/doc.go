// Package observability tests examples/observability and docs/runbooks.md: Prometheus parses every
// expression, a running sidecar exports every metric and label that they use, the alerts fire on what it
// exports when something goes wrong, Grafana knows every key of the dashboard, and the commands of the
// runbooks run as written. A module of its own, for Prometheus brings a lot along.
package observability
