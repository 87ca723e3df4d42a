// Package e2e tests rlsidecar as its users meet it: the built program behind a real Envoy, set up by
// the files in examples/. Its tests run on Linux, where each gets a loopback address of its own.
package e2e
