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
	awaitEnd(t, serve)
}

// check waits for a named pipe that has no writer.
func TestASecondSignalEndsACommand(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "limits.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	check := exec.Command("rlsidecar", "check", pipe)
	if err := check.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = check.Process.Kill() })
	ended := make(chan struct{})
	defer close(ended)
	go func() { // the first signals may come before the program handles them
		for {
			select {
			case <-ended:
				return
			case <-time.After(100 * time.Millisecond):
				_ = check.Process.Signal(syscall.SIGTERM)
			}
		}
	}()
	awaitEnd(t, check)
}

func awaitEnd(t *testing.T, c *exec.Cmd) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // an error, because a signal ended the process
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the process still runs 30 s after the second signal")
	}
}
