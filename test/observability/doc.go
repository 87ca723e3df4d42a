// Package observability tests examples/observability and docs/runbooks.md: Prometheus parses every expression, a running
// sidecar exports every metric and label that they use, the alerts fire when something fails, every key of the dashboard
// is one of Grafana's, and the commands of the runbooks run as written. It is a module of its own because Prometheus has
// many dependencies.
package observability
