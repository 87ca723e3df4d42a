// Package observability tests examples/observability and docs/runbooks.md. Prometheus must accept every
// expression, and a running sidecar must export every metric and label in them. The alerts must fire when
// something fails. Grafana must accept every key of the dashboard. The commands of the runbooks that change
// limits run as written; TestPages in test/e2e runs the others. The package is a module of its own because
// Prometheus has many dependencies.
package observability
