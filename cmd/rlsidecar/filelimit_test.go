//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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
			within(t, "it is ready", func() bool { return requestHealth(http, "/readyz") == nil })
			for range 100 {
				for _, at := range []string{grpc, http} {
					nc, err := net.DialTimeout("unix", at, time.Second) // fails when the queue of the socket is full
					if err != nil {
						continue
					}
					t.Cleanup(func() { nc.Close() })
				}
			}
			within(t, "/livez", func() bool { return requestHealth(http, "/livez") == nil })
			within(t, "the log says "+c.log, func() bool { return strings.Contains(stderr.String(), c.log) })
			if above := strings.Contains(stderr.String(), "too few files for the maximum number of connections"); above != (c.variables != nil) {
				t.Errorf("the log has the warning about the bounds: %t, want %t", above, !above)
			}
			if !strings.Contains(stderr.String(), "WARN") {
				t.Errorf("the log has no line at level WARN:\n%s", &stderr)
			}
		})
	}
}

func requestHealth(socket, path string) error {
	client := http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
	}
	r, err := client.Get("http://localhost" + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

func within(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", condition)
		}
	}
}
