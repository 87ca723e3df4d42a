// Package cluster installs charts/rlsidecar into a real Kubernetes API server: kube-apiserver and etcd, built from their modules, in the test's own
// process. There are no nodes and no controllers, so that no pod ever runs. A module of its own, as Kubernetes brings a lot along: scripts/chart.sh
// runs it, with Helm 3 and 4.
package cluster
