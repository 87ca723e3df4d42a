// Command xds is an example of a minimal control plane: it sends limits to one node over ADS, in the protocol of
// envoyproxy/ratelimit. README.md in this folder describes how to run it.
package main

import (
	"context"
	"flag"
	"log"
	"net"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
)

// limits returns one resource for each domain. Together they are the whole configuration.
func limits(perMinute uint32) []types.Resource {
	return []types.Resource{&ratelimit.RateLimitConfig{
		Name: "edge", Domain: "edge",
		Descriptors: []*ratelimit.RateLimitDescriptor{{
			Key:       "api_key", // any value: each has a bucket of its own
			RateLimit: &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_MINUTE, RequestsPerUnit: perMinute},
		}},
	}}
}

func main() {
	listen := flag.String("listen", "127.0.0.1:18001", "address to listen on")
	node := flag.String("node", "edge", "node ID of the sidecars that receive the limits (--xds-node-id); others receive none")
	perMinute := flag.Uint("per-minute", 5, "requests a minute of each key")
	version := flag.String("version", "1", "version of the limits; a version that rlsidecar has is not sent again")
	flag.Parse()

	snapshot, err := cache.NewSnapshot(*version, map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: limits(uint32(*perMinute)),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	if err := snapshots.SetSnapshot(ctx, *node, snapshot); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(s, server.NewServer(ctx, snapshots, server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
			switch {
			case r.ErrorDetail != nil: // it lists all mistakes; the previous limits stay in use
				log.Printf("%s refuses: %s", r.Node.GetId(), r.ErrorDetail.Message)
			case r.VersionInfo != "":
				log.Printf("version %s is in use", r.VersionInfo)
			}
			return nil
		},
	}))
	log.Printf("limits for node %q at %s", *node, listener.Addr())
	log.Fatal(s.Serve(listener))
}
