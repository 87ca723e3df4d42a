// Package cluster installs charts/rlsidecar into a real Kubernetes API server: kube-apiserver and etcd, built from their
// modules, in the test's own process. There are no nodes and no controllers, so no pod ever runs. It is a module of its
// own because Kubernetes has many dependencies. scripts/chart.sh runs it with Helm 3 and 4.
package cluster
