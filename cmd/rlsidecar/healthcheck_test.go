package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestHealthcheckReportsReadiness(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The program runs without flags and under the reference server's name, as in the container image.
	socket := filepath.Join(t.TempDir(), "grpc")
	t.Setenv("RLSIDECAR_CONFIG", write(t, limits))
	t.Setenv("GRPC_UDS", socket)
	t.Setenv("HOST", "127.0.0.1")
	t.Setenv("PORT", "0")
	t.Setenv("DEBUG_PORT", "0")
	t.Setenv("RLSIDECAR_DRAIN_DELAY", "0s")
	var log output
	ended := make(chan int)
	go func() { ended <- runAs(ctx, []string{"/bin/ratelimit"}, nil, io.Discard, &log) }()
	var port string
	for deadline := time.Now().Add(time.Minute); port == "" && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, after, ok := strings.Cut(log.String(), "HTTP   http://127.0.0.1:"); ok {
			port, _, _ = strings.Cut(after, "\n")
		}
	}
	if port == "" {
		t.Fatalf("the log lacks the addresses of the listeners:\n%s", log.String())
	}
	t.Setenv("PORT", port)

	decide := func(args ...string) (code int, outputOf string) {
		var stderr bytes.Buffer
		code = runAs(t.Context(), append([]string{"/bin/ratelimit", "healthcheck"}, args...), nil, io.Discard, &stderr)
		return code, stderr.String()
	}
	for name, args := range map[string][]string{"HTTP": nil, "gRPC": {"--http-listen", ""}} {
		if code, outputOf := decide(args...); code != exitDone {
			t.Errorf("%s: exit code %d, want %d: %s", name, code, exitDone, outputOf)
		}
	}
	if code, outputOf := decide("--http-listen", "", "--grpc-listen", ""); code != exitUsage {
		t.Errorf("without a listener: exit code %d, want %d: %s", code, exitUsage, outputOf)
	}
	cancel()
	<-ended
	if code, outputOf := decide(); code != exitNo || !strings.Contains(outputOf, "refused") {
		t.Errorf("after the end of the sidecar: exit code %d, want %d and \"refused\": %s", code, exitNo, outputOf)
	}
}

// A startup probe with --live must not restart a sidecar that waits for its first configuration.
func TestLiveSucceedsBeforeReadiness(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	socket := filepath.Join(t.TempDir(), "http")
	var log output
	ended := make(chan int)
	go func() {
		ended <- runAs(ctx, []string{"rlsidecar", "serve", "--xds-server", "127.0.0.1:1", "--start-without-config", "--drain-delay", "0s",
			"--http-listen", "unix://" + socket, "--grpc-listen", "127.0.0.1:0", "--admin-listen", ""}, nil, io.Discard, &log)
	}()
	decide := func(args ...string) int {
		return runAs(t.Context(), append([]string{"rlsidecar", "healthcheck", "--http-listen", "unix://" + socket}, args...), nil, io.Discard, io.Discard)
	}
	alive := func() bool { return decide("--live") == exitDone }
	for deadline := time.Now().Add(time.Minute); !alive() && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
	}
	if !alive() {
		t.Errorf("healthcheck --live fails; want exit code %d:\n%s", exitDone, log.String())
	}
	if code := decide(); code != exitNo {
		t.Errorf("the sidecar is not ready: exit code %d, want %d", code, exitNo)
	}
	cancel()
	<-ended
	if alive() {
		t.Error("healthcheck --live succeeds after the sidecar has ended; want a failure")
	}
}
