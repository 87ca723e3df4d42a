//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestASecondSignalEndsTheProcess(t *testing.T) {
	http := filepath.Join(t.TempDir(), "h")
	serve := exec.Command("rlsidecar", "serve", "--config", write(t, limits), "--drain-delay", "1m",
		"--grpc-listen", "127.0.0.1:0", "--http-listen", "unix://"+http, "--admin-listen", "")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serve.Process.Kill() })
	within(t, "it is ready", func() bool { return requestHealth(http, "/readyz") == nil })
	_ = serve.Process.Signal(syscall.SIGINT)
	within(t, "it drains", func() bool { return requestHealth(http, "/readyz") != nil })
	if err := requestHealth(http, "/livez"); err != nil {
		t.Errorf("while it drains: %v; want an answer", err)
	}
	_ = serve.Process.Signal(syscall.SIGINT)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serve.Wait() // an error, because a signal ended the process
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the process still runs 30 s after the second signal")
	}
}
