package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
)

func (s *stack) shared(t *testing.T, grpcAt, httpAt, delay string) *process {
	t.Helper()
	p := start(t, sidecarProgram, "serve", "--config", root+"/examples/quickstart.yaml", "--reuse-port",
		"--grpc-listen", grpcAt, "--http-listen", httpAt, "--admin-listen", "", "--drain-delay", delay)
	eventually(t, "rlsidecar is ready", func() bool {
		if !p.running() {
			t.Fatalf("rlsidecar ended: %v", p.err)
		}
		return strings.Contains(p.output.tail(), "rlsidecar is ready")
	})
	return p
}

// TestTakeoverEmptiesTheQueue stops a sidecar while 300 connections wait in the kernel until it accepts them.
// Their clients have already sent a request or the HTTP/2 preface. Each gets an answer, although there is no
// drain delay.
func TestTakeoverEmptiesTheQueue(t *testing.T) {
	t.Parallel()
	const many = 150
	dir := t.TempDir()
	for _, c := range []struct{ name, network, grpcAt, httpAt string }{
		{"ports", "tcp", "", ""},
		{"sockets", "unix", dir + "/grpc", dir + "/http"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, scheme := sidecarStack(t, ""), "unix://"
			if c.network == "tcp" {
				c.grpcAt, c.httpAt, scheme = s.addr+":8081", s.addr+":8080", ""
			}
			old := s.shared(t, scheme+c.grpcAt, scheme+c.httpAt, "0s")
			old.freeze(t)
			var waiting []func() error
			for range many {
				waiting = append(waiting, overHTTP(t, c.network, c.httpAt), overGRPC(t, c.network, c.grpcAt))
			}
			s.shared(t, scheme+c.grpcAt, scheme+c.httpAt, "0s")
			if err := old.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			old.thaw(t)
			lost := 0
			for _, answered := range waiting {
				if err := answered(); err != nil {
					if lost++; lost < 5 {
						t.Error(err)
					}
				}
			}
			if lost > 0 {
				t.Errorf("%d of %d connections were lost, want 0", lost, len(waiting))
			}
			eventually(t, "the old sidecar ends", func() bool { return !old.running() })
		})
	}
}

// overHTTP connects and sends a request. The returned function waits for its answer.
func overHTTP(t *testing.T, network, address string) func() error {
	t.Helper()
	c := dialAt(t, network, address)
	if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: sidecar\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return func() error {
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return fmt.Errorf("HTTP: %w", err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("HTTP: %s", answer.Status)
		}
		return nil
	}
}

// overGRPC connects and sends the preface. The returned function waits for the server's SETTINGS (frame type
// 4), GOAWAY (7), and the PING (6) after it. With these, and without a reset, a client knows that it must send
// its requests on another connection.
func overGRPC(t *testing.T, network, address string) func() error {
	t.Helper()
	c := dialAt(t, network, address)
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	return func() error {
		for seen := ""; ; {
			head := make([]byte, 9)
			if _, err := io.ReadFull(c, head); err != nil {
				return fmt.Errorf("gRPC, after the frames %q: %w", seen, err)
			}
			seen += fmt.Sprint(head[3])
			if _, err := io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
				return fmt.Errorf("gRPC, after the frames %q: %w", seen, err)
			}
			if head[3] == 6 && strings.HasPrefix(seen, "4") && strings.Contains(seen, "7") {
				return c.Close()
			}
		}
	}
}

func dialAt(t *testing.T, network, address string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(maxWait)); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTakeoverLosesNoConnection(t *testing.T) {
	t.Parallel()
	s := sidecarStack(t, "")
	grpcAt, httpAt := s.addr+":8081", s.addr+":8080"
	running := s.shared(t, grpcAt, httpAt, "0s")
	var opened, lost atomic.Int64
	var done atomic.Bool
	var clients sync.WaitGroup
	repeat := func(send func() error) {
		clients.Go(func() {
			for !done.Load() {
				opened.Add(1)
				if err := send(); err != nil && lost.Add(1) < 5 {
					t.Error(err)
				}
			}
		})
	}
	fresh := &http.Client{Timeout: maxWait, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 4 {
		repeat(func() error {
			answer, err := fresh.Get("http://" + httpAt + "/livez")
			if err != nil {
				return err
			}
			return answer.Body.Close()
		})
		repeat(func() error {
			conn, err := grpc.NewClient(grpcAt, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), rlstest.Request("edge", rlstest.Descriptor("k=v")))
			return err
		})
	}
	defer clients.Wait()
	defer done.Store(true)
	for range 5 {
		before := opened.Load()
		next := s.shared(t, grpcAt, httpAt, "0s")
		if err := running.stop(); err != nil {
			t.Error(err)
		}
		running = next
		eventually(t, "load", func() bool { return opened.Load() > before+100 })
	}
	done.Store(true)
	clients.Wait()
	t.Logf("%d connections, %d lost", opened.Load(), lost.Load())
	if lost.Load() > 0 {
		t.Errorf("%d of %d connections were lost, want 0", lost.Load(), opened.Load())
	}
}
