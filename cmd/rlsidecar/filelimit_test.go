//go:build linux

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func TestHealthOutOfFiles(t *testing.T) {
	for name, c := range map[string]struct {
		variables []string
		log       string
	}{
		"within the default bounds": {nil, "connections are refused"},
		"bounds above the limit":    {[]string{"RLSIDECAR_GRPC_MAX_CONNECTIONS=1000", "RLSIDECAR_HTTP_MAX_CONNECTIONS=1000"}, "too many open files"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			grpc, http := filepath.Join(folder, "g"), filepath.Join(folder, "h")
			args := []string{
				"-c", `ulimit -n 64 && exec rlsidecar serve "$@"`, "sh", "--config", write(t, limits), "--drain-delay", "0s",
				"--drain-timeout", "1s", "--grpc-listen", "unix://" + grpc, "--http-listen", "unix://" + http, "--admin-listen", "",
			}
			client := server.Client("unix://" + http)
			client.Timeout = 5 * time.Second
			healthy := func(path string) bool {
				r, err := client.Get("http://localhost" + path)
				return err == nil && r.Body.Close() == nil && r.StatusCode == 200
			}
			var stderr output
			serve := exec.Command("sh", args...) // stopped below, after the test
			serve.Stderr = &stderr
			serve.Env = append(os.Environ(), c.variables...)
			if err := serve.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = serve.Process.Signal(syscall.SIGINT)
				if err := serve.Wait(); err != nil {
					t.Errorf("serve ended with %v; want no error:\n%s", err, &stderr)
				}
			})
			redistest.Eventually(t, "it is ready", func() bool { return healthy("/readyz") })
			for range 100 {
				for _, at := range []string{grpc, http} {
					nc, err := net.DialTimeout("unix", at, time.Second) // fails when the queue of the socket is full
					if err != nil {
						continue
					}
					t.Cleanup(func() { nc.Close() })
				}
			}
			redistest.Eventually(t, "/livez", func() bool { return healthy("/livez") })
			redistest.Eventually(t, "the log says "+c.log, func() bool { return strings.Contains(stderr.String(), c.log) })
			if above := strings.Contains(stderr.String(), "too few files for the maximum number of connections"); above != (c.variables != nil) {
				t.Errorf("the log has the warning about the bounds: %t, want %t", above, !above)
			}
			if !strings.Contains(stderr.String(), "WARN") {
				t.Errorf("the log has no line at level WARN:\n%s", &stderr)
			}
		})
	}
}
