// Package xdstest runs go-control-plane's server with rate limit configurations, for tests.
package xdstest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xdsserver "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// Plane is a control plane. It sends configurations to the nodes for which Set was called.
type Plane struct {
	Address string
	// Opened receives the headers of each stream, Requests all requests and acknowledgements, and Refused the
	// reasons for rejections. Each holds up to 1,000 items that the test has not received. Further items are
	// dropped.
	Opened   chan metadata.MD
	Requests chan *discovery.DiscoveryRequest
	Refused  chan string
	// Stop stops the control plane. The end of the test does too.
	Stop func()

	cache cache.SnapshotCache
}

// Start starts a control plane at address, or at a free port if address is "". It runs until Stop is called or the test
// ends.
func Start(tb testing.TB, address string, options ...grpc.ServerOption) *Plane {
	tb.Helper()
	if address == "" {
		address = fmt.Sprint("127.0.0.1:", redistest.FreePort(tb))
	}
	const room = 1000
	p := &Plane{
		Address: address, Opened: make(chan metadata.MD, room), Requests: make(chan *discovery.DiscoveryRequest, room), Refused: make(chan string, room),
		cache: cache.NewSnapshotCache(false, cache.IDHash{}, nil),
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(g, xdsserver.NewServer(ctx, p.cache, xdsserver.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, _ int64, _ string) error {
			headers, _ := metadata.FromIncomingContext(ctx)
			offer(p.Opened, headers)
			return nil
		},
		StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
			offer(p.Requests, r)
			if r.ErrorDetail != nil {
				offer(p.Refused, r.ErrorDetail.Message)
			}
			return nil
		},
	}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(listener) })
	p.Stop = sync.OnceFunc(func() {
		cancel()
		g.Stop()
		serving.Wait()
	})
	tb.Cleanup(p.Stop)
	return p
}

func offer[T any](to chan T, value T) {
	select {
	case to <- value:
	default:
	}
}

// Set makes configs the whole configuration of node, under the given version.
func (p *Plane) Set(tb testing.TB, node, version string, configs ...*conf.RateLimitConfig) {
	tb.Helper()
	list := make([]types.Resource, len(configs))
	for i, c := range configs {
		list[i] = c
	}
	s, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cache.SetSnapshot(context.Background(), node, s); err != nil {
		tb.Fatal(err)
	}
}
