package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
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
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func TestNewProcessTakesOverThePorts(t *testing.T) {
	concurrent(t)
	t.Parallel()
	var grpcAddress, httpAddress, adminAddress string
	expectTakeover(t, &grpcAddress, &httpAddress, &adminAddress, func() *instance {
		t.Helper()
		x := start(t, small, func(c *Config) {
			c.ReusePort, c.DrainDelay = true, time.Second
			if grpcAddress != "" {
				c.GRPC, c.HTTP, c.Admin = grpcAddress, httpAddress, adminAddress
			}
		})
		if grpcAddress == "" { // the first server, before any request
			grpcAddress, httpAddress, adminAddress = x.GRPC.String(), x.HTTP.String(), x.Admin.String()
		}
		return x
	})
}

// Each request must be charged exactly once, although the old and the new server have different connections to Redis.
func TestNewProcessTakesOverWithRedis(t *testing.T) {
	concurrent(t)
	t.Parallel()
	redis := onRedis("redis://" + redistest.Start(t).Addr)
	var grpcAddress, httpAddress string
	var running *instance
	allowed := expectTakeover(t, &grpcAddress, &httpAddress, new(string), func() *instance {
		t.Helper()
		running = start(t, small, redis, func(c *Config) {
			c.ReusePort, c.DrainDelay, c.Redis.Timeout = true, time.Second, time.Minute
			if grpcAddress != "" {
				c.GRPC, c.HTTP = grpcAddress, httpAddress
			}
		})
		if grpcAddress == "" {
			grpcAddress, httpAddress = running.GRPC.String(), running.HTTP.String()
		}
		return running
	})
	peek := descriptor("k=v")
	peek.HitsAddend = wrapperspb.UInt64(0)
	if charged := 1_000_000 - int64(running.put(t, request("d", peek)).Statuses[0].LimitRemaining); charged != allowed {
		t.Errorf("%d requests were allowed, and %d units were charged; want equal numbers", allowed, charged)
	}
}

func TestNewProcessTakesOverTheSockets(t *testing.T) {
	concurrent(t)
	t.Parallel()
	grpcAddress, httpAddress := "unix://"+filepath.Join(t.TempDir(), "grpc"), "unix://"+filepath.Join(t.TempDir(), "http")
	expectTakeover(t, &grpcAddress, &httpAddress, new(string), func() *instance {
		t.Helper()
		return start(t, small, func(c *Config) {
			c.ReusePort, c.DrainDelay, c.GRPC, c.HTTP = true, time.Second, grpcAddress, httpAddress
		})
	})
	for _, address := range []string{grpcAddress, httpAddress} {
		path := strings.TrimPrefix(address, "unix://")
		if _, err := os.Lstat(path + nextSuffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file %s is left behind (%v); want os.ErrNotExist", path+nextSuffix, err)
		}
	}
}

// expectTakeover starts servers one after the other, and stops the previous one each time. The function next starts a
// server, and sets the addresses. Meanwhile clients send requests, and all of them must be answered, those over gRPC
// with OK. expectTakeover returns the number of requests over gRPC.
func expectTakeover(t *testing.T, grpcAddress, httpAddress, adminAddress *string, next func() *instance) (allowed int64) {
	t.Helper()
	running := next()

	var done atomic.Bool
	var clients sync.WaitGroup
	requests := map[string]*atomic.Int64{}
	repeat := func(condition string, many int, send func() error) {
		n := new(atomic.Int64)
		requests[condition] = n
		for range many {
			clients.Go(func() {
				for ; !done.Load(); n.Add(1) {
					if err := send(); err != nil {
						t.Errorf("%s: %v", condition, err)
					}
				}
			})
		}
	}
	connect := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(*grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Error(err)
		}
		return conn
	}
	put := func(conn *grpc.ClientConn) error {
		answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("d", descriptor("k=v")))
		if err == nil && answer.OverallCode != rls.RateLimitResponse_OK {
			err = fmt.Errorf("answered %v", answer)
		}
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
	over := func(address, path string) func() error {
		network, at := "tcp", address
		if socket, isUnix := strings.CutPrefix(address, unixScheme); isUnix {
			network, at = "unix", socket
		}
		fresh := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, at)
			},
		}}
		return func() error {
			answer, err := fresh.Get("http://sidecar" + path)
			if err != nil {
				return err
			}
			return answer.Body.Close()
		}
	}
	repeat("HTTP, connecting each time", 2, over(*httpAddress, "/livez"))
	if *adminAddress != "" {
		repeat("admin, connecting each time", 1, over(*adminAddress, "/rlconfig"))
	}

	for range 3 {
		old := running
		running = next()
		if err := old.stop(); err != nil {
			t.Error(err)
		}
		before := requests["gRPC"].Load()
		eventually(t, "100 more requests are answered", func() bool { return requests["gRPC"].Load() > before+100 })
	}
	done.Store(true)
	clients.Wait()
	for condition, n := range requests {
		if t.Logf("%s: %d requests", condition, n.Load()); n.Load() == 0 {
			t.Errorf("%s: no request was sent", condition)
		}
		if strings.HasPrefix(condition, "gRPC") {
			allowed += n.Load()
		}
	}
	return allowed
}

func TestPortsAreSharedOnlyIfBothShareThem(t *testing.T) {
	x := start(t, small) // this server runs without --reuse-port
	err := run(t, Config{Paths: []string{x.file}, GRPC: x.GRPC.String(), ReusePort: true})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "--reuse-port") {
		t.Errorf("got %v; want the error syscall.EADDRINUSE and an error that contains %q", err, "--reuse-port")
	}
	socket := "unix://" + filepath.Join(t.TempDir(), "s")
	for _, mine := range []bool{false, true} { // one of the two servers runs without --reuse-port
		holder := start(t, small, func(c *Config) { c.ReusePort, c.GRPC = mine, socket })
		if err := run(t, Config{Paths: []string{x.file}, GRPC: socket, ReusePort: !mine}); err == nil || !strings.Contains(err.Error(), "another process listens") {
			t.Errorf("got %v; want an error that contains %q", err, "another process listens")
		}
		holder.send(t, "k=v")
		if mine { // a server that fails to start must leave the socket to the old one
			if err := run(t, Config{Paths: []string{x.file}, GRPC: socket, HTTP: x.HTTP.String(), ReusePort: true}); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("got %v; want the error syscall.EADDRINUSE", err)
			}
			holder.send(t, "k=v")
		}
		if err := holder.stop(); err != nil {
			t.Error(err)
		}
	}
	again := start(t, small, func(c *Config) { c.GRPC = socket }) // the file of the socket still exists, because the server that shared it did not delete it
	again.send(t, "k=v")
	shares := start(t, small, func(c *Config) { c.ReusePort = true })
	if l, err := net.Listen("tcp", shares.GRPC.String()); err == nil {
		l.Close()
		t.Error("a socket without SO_REUSEPORT listens at a shared port; want an error")
	}
}
