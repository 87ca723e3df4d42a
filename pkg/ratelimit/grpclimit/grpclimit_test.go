package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit/grpclimit"
)

type answering struct{ err error }

func (s answering) Submit(b *backend.Batch) { b.Fail(s.err) }

var failing = answering{backend.ErrUnavailable}

// dial starts a server of the health service whose limit allows two calls, with one more every 1.5 s and half a
// microsecond, and connects to it.
func dial(t *testing.T, store backend.Store, c grpclimit.Config) healthgrpc.HealthClient {
	t.Helper()
	if store == nil {
		store = memory.New(memory.Config{Clock: func() time.Time { return time.UnixMicro(int64(1_767_225_600 * algorithms.Second)) }})
	}
	limiter, err := ratelimit.New(ratelimit.Config{Store: store, Limits: ratelimit.Limits{"calls": ratelimit.TokenBucket(2, 3*time.Second+time.Microsecond)}})
	if err != nil {
		t.Fatal(err)
	}
	c.Limit = "calls"
	unary, stream, err := grpclimit.New(limiter, c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	healthgrpc.RegisterHealthServer(server, health.NewServer())
	go server.Serve(l) //nolint:errcheck // it ends with Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return healthgrpc.NewHealthClient(conn)
}

// pairs are names and values of metadata in turn.
func check(t *testing.T, client healthgrpc.HealthClient, pairs ...string) (codes.Code, metadata.MD, *status.Status) {
	t.Helper()
	var trailer metadata.MD
	ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs(pairs...))
	_, err := client.Check(ctx, &healthgrpc.HealthCheckRequest{}, grpc.Trailer(&trailer))
	return status.Code(err), trailer, status.Convert(err)
}

func TestDeniedCallsReportTheRetryTime(t *testing.T) {
	client := dial(t, nil, grpclimit.Config{Key: grpclimit.By(grpclimit.ByPeer, grpclimit.ByMethod)})
	for range 2 {
		if code, _, s := check(t, client); code != codes.OK {
			t.Fatalf("got %v; want code codes.OK", s)
		}
	}
	code, trailer, s := check(t, client)
	if code != codes.ResourceExhausted || len(trailer["grpc-retry-pushback-ms"]) != 1 || trailer["grpc-retry-pushback-ms"][0] != "1501" {
		t.Errorf("got %v %v; want code codes.ResourceExhausted, 1 element and trailer[\"grpc-retry-pushback-ms\"][0] %q", s, trailer, "1501")
	}
	if len(s.Details()) != 1 {
		t.Fatalf("details: %v; want 1", s.Details())
	}
	if info, ok := s.Details()[0].(*errdetails.RetryInfo); !ok || info.GetRetryDelay().AsDuration() != 1500001*time.Microsecond {
		t.Errorf("details: %v; want a errdetails.RetryInfo and info.GetRetryDelay().AsDuration() %v", s.Details(), 1500001*time.Microsecond)
	}
	watch, err := client.Watch(t.Context(), &healthgrpc.HealthCheckRequest{}) // another method has another bucket
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Error(err)
	}
}

func TestStreamsAreLimited(t *testing.T) {
	client := dial(t, nil, grpclimit.Config{})
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		watch, err := client.Watch(t.Context(), &healthgrpc.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); status.Code(err) != want {
			t.Errorf("%d: %v, want %v", i, err, want)
		}
	}
}

func TestKeysByMetadata(t *testing.T) {
	client := dial(t, nil, grpclimit.Config{Key: grpclimit.ByMetadata("user")})
	for i, step := range []struct {
		want  codes.Code
		pairs []string
	}{
		{codes.OK, []string{"user", "bob"}},
		{codes.OK, []string{"user", "bob"}},
		{codes.ResourceExhausted, []string{"user", "bob"}},
		{codes.OK, []string{"user", "alice"}},
		{codes.InvalidArgument, nil},
		{codes.InvalidArgument, []string{"user", ""}},
		{codes.InvalidArgument, []string{"user", "x", "user", "y"}},
	} {
		if code, _, s := check(t, client, step.pairs...); code != step.want {
			t.Errorf("%d: %v: %v, want %v", i, step.pairs, s, step.want)
		}
	}
}

// FailOpen covers failures of the store, not mistakes of the program.
func TestFailures(t *testing.T) {
	broken := errors.New("no session")
	wrongKey := func(context.Context, string, []string) ([]string, error) { return nil, broken }
	for name, c := range map[string]struct {
		store    backend.Store
		config   grpclimit.Config
		code     codes.Code
		reported error
	}{
		"a store that fails":              {failing, grpclimit.Config{}, codes.Unavailable, ratelimit.ErrUnavailable},
		"a store that fails, fail open":   {failing, grpclimit.Config{FailOpen: true}, codes.OK, ratelimit.ErrUnavailable},
		"a store that is full":            {answering{backend.ErrFull}, grpclimit.Config{}, codes.Unavailable, backend.ErrFull},
		"a store that is full, fail open": {answering{backend.ErrFull}, grpclimit.Config{FailOpen: true}, codes.OK, backend.ErrFull},
		"a wrong key":                     {nil, grpclimit.Config{FailOpen: true, Key: wrongKey}, codes.Unavailable, broken},
	} {
		reported := make(chan error, 1)
		c.config.OnError = func(_ context.Context, err error) { reported <- err }
		code, _, s := check(t, dial(t, c.store, c.config))
		if err := <-reported; code != c.code || !errors.Is(err, c.reported) {
			t.Errorf("%s: got %v, and OnError got %v; want %v and %v", name, s, err, c.code, c.reported)
		}
	}
}

// A call that ends before its turn does not reach the handler.
func TestALeakyBucketSpacesCalls(t *testing.T) {
	limiter, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{}), Limits: ratelimit.Limits{
		"soon": ratelimit.LeakyBucket(1, 40*time.Millisecond, 9), "late": ratelimit.LeakyBucket(1, time.Hour, 9),
	}})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	handler := func(context.Context, any) (any, error) { calls++; return "hello", nil }
	twice := func(ctx context.Context, name string) error {
		unary, _, err := grpclimit.New(limiter, grpclimit.Config{Limit: name})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err = unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/greeter/Hello"}, handler)
		}
		return err
	}
	start := time.Now()
	if err := twice(t.Context(), "soon"); err != nil || time.Since(start) < 40*time.Millisecond || calls != 2 {
		t.Errorf("%d calls after %v: %v; want 2 after at least 40 ms", calls, time.Since(start), err)
	}
	calls = 0
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := twice(ctx, "late"); status.Code(err) != codes.Canceled || calls != 1 {
		t.Errorf("%d calls, %v; want the first call only, and the error of the context", calls, err)
	}
}

func TestAnUnknownLimitIsAnErrorOfNew(t *testing.T) {
	limiter, err := ratelimit.New(ratelimit.Config{Store: failing})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := grpclimit.New(limiter, grpclimit.Config{Limit: "nope"}); !errors.Is(err, ratelimit.ErrUnknown) {
		t.Errorf("got %v; want the error ratelimit.ErrUnknown", err)
	}
}

func Example() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store:  memory.New(memory.Config{}),
		Limits: ratelimit.Limits{"calls": ratelimit.TokenBucket(1, 90*time.Second)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	unary, stream, err := grpclimit.New(limiter, grpclimit.Config{
		Limit: "calls",
		Key:   grpclimit.By(grpclimit.ByMetadata("user"), grpclimit.ByMethod),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	defer server.Stop()

	// The server handles calls of user bob:
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("user", "bob"))
	handler := func(context.Context, any) (any, error) { return "hello", nil }
	for range 2 {
		answer, err := unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/greeter/Hello"}, handler)
		fmt.Println(answer, status.Code(err))
	}
	// Output:
	// hello OK
	// <nil> ResourceExhausted
}

// A client may have all addresses of an IPv6 network, so the network is its key.
func TestKeysByPeer(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7", "[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64", "[::ffff:192.0.2.7]:80": "192.0.2.7",
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))})
		key, err := grpclimit.ByPeer(ctx, "", nil)
		if err != nil || len(key) != 1 || key[0] != want {
			t.Errorf("%s: got %q, %v; want %q", addr, key, err, want)
		}
	}
}
