package server

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestNewProcessTakesOverThePorts restarts a server, a new one first, while clients ask it over gRPC
// and HTTP, by connections that last and by new ones. None of them fails.
func TestNewProcessTakesOverThePorts(t *testing.T) {
	var grpcAddress, httpAddress, adminAddress string
	next := func() *instance {
		t.Helper()
		return start(t, small, func(c *Config) {
			c.ReusePort, c.DrainDelay = true, 200*time.Millisecond
			if grpcAddress != "" {
				c.GRPC, c.HTTP, c.Admin = grpcAddress, httpAddress, adminAddress
			}
		})
	}
	running := next()
	grpcAddress, httpAddress, adminAddress = running.GRPC.String(), running.HTTP.String(), running.Admin.String()

	var done atomic.Bool
	var clients sync.WaitGroup
	asked := map[string]*atomic.Int64{}
	repeat := func(what string, many int, ask func() error) {
		n := new(atomic.Int64)
		asked[what] = n
		for range many {
			clients.Go(func() {
				for ; !done.Load(); n.Add(1) {
					if err := ask(); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
			})
		}
	}
	connect := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Error(err)
		}
		return conn
	}
	put := func(conn *grpc.ClientConn) error {
		_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("d", descriptor("k=v")))
		return err
	}
	lasting := connect()
	defer lasting.Close()
	repeat("gRPC", 8, func() error { return put(lasting) })
	repeat("gRPC, connecting each time", 2, func() error {
		conn := connect()
		defer conn.Close()
		return put(conn)
	})
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	over := func(address, path string) func() error {
		return func() error {
			answer, err := fresh.Get("http://" + address + path)
			if err != nil {
				return err
			}
			return answer.Body.Close()
		}
	}
	repeat("HTTP, connecting each time", 2, over(httpAddress, "/livez"))
	repeat("admin, connecting each time", 1, over(adminAddress, "/rlconfig"))

	for range 3 {
		old := running
		running = next()
		if err := old.stop(); err != nil {
			t.Error(err)
		}
		before := asked["gRPC"].Load()
		eventually(t, "load", func() bool { return asked["gRPC"].Load() > before+100 })
	}
	done.Store(true)
	clients.Wait()
	for what, n := range asked {
		if t.Logf("%s: %d asks", what, n.Load()); n.Load() == 0 {
			t.Errorf("%s: nothing was asked", what)
		}
	}
}

func TestPortsAreSharedByThoseWhoShareThem(t *testing.T) {
	x := start(t, small) // does not
	err := run(t, Config{Paths: []string{x.file}, GRPC: x.GRPC.String(), ReusePort: true})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "--reuse-port") {
		t.Errorf("%v", err)
	}
	socket := "unix://" + filepath.Join(t.TempDir(), "s")
	holder := start(t, small, func(c *Config) { c.ReusePort, c.GRPC = true, socket })
	if err := run(t, Config{Paths: []string{x.file}, GRPC: socket, ReusePort: true}); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("%v", err)
	}
	holder.ask(t, "k=v")
	shares := start(t, small, func(c *Config) { c.ReusePort = true })
	if l, err := net.Listen("tcp", shares.GRPC.String()); err == nil {
		l.Close()
		t.Error("who does not share a port got one that is shared")
	}
}
