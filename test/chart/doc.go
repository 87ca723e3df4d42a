// Package chart tests charts/rlsidecar: it runs the chart's suites, and checks that Kubernetes accepts the manifests and
// rlsidecar the flags in them. It is a module of its own because Helm has many dependencies.
package chart
