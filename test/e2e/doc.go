// Package e2e tests rlsidecar in the way in which it is used: the built program behind a real Envoy, configured by the
// files in examples/, and as a replacement of the reference server, configured by that server's environment. Its tests
// run on Linux, where each gets a loopback address of its own.
package e2e
