// Package chart tests charts/rlsidecar. It runs the chart's own test suites. It checks that Kubernetes
// accepts the manifests, and that rlsidecar accepts the flags in them. It is a module of its own because Helm
// has many dependencies.
package chart
