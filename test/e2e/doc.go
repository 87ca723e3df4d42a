// Package e2e tests rlsidecar as its users meet it: the built program behind a real Envoy, set up by
// the files in examples/, and in the place of the reference server, set up by that one's environment. Its tests run on Linux, where each gets a loopback address of its own.
package e2e
