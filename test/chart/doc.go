// Package chart tests charts/rlsidecar: its suites, that Kubernetes would take what it makes, and that
// rlsidecar takes the flags that it gives. A module of its own, for Helm brings a lot along.
package chart
