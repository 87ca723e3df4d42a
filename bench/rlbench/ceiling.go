package main

import (
	"context"
	"fmt"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/rlsidecar/rlsidecar/bench/empty"
	"github.com/rlsidecar/rlsidecar/bench/load"
)

// ceilingCmd runs a server with the least possible cost. The server answers every request without a decision.
// It works directly on HTTP/2 frames (h2), or on grpc-go with generated code and without options.
type ceilingCmd struct {
	Kind   string `enum:"h2,grpc-go" default:"h2" help:"h2: HTTP/2 frames. grpc-go: the generated code on grpc-go."`
	Listen string `required:"" placeholder:"ADDR" help:"Address of the server: host:port or unix:///path."`
}

func (c *ceilingCmd) Run(a *app) error {
	listener, err := load.Listen(a, c.Listen)
	if err != nil {
		return err
	}
	if c.Kind == "h2" {
		stop := context.AfterFunc(a, func() { _ = listener.Close() })
		defer stop()
		if err := empty.Serve(listener); err != nil {
			return fmt.Errorf("serve on %s: %w", c.Listen, err)
		}
		return nil
	}
	server := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(server, emptyService{})
	stop := context.AfterFunc(a, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serve on %s: %w", c.Listen, err)
	}
	return nil
}

type emptyService struct{}

func (emptyService) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}, nil
}
