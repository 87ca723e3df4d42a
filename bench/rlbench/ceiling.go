package main

import (
	"context"
	"fmt"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// ceilingCmd is the least that a rate limiter on grpc-go can cost: no options, the generated code,
// nothing done.
type ceilingCmd struct {
	Listen string `required:"" placeholder:"ADDR" help:"host:port or unix:///path."`
}

func (c *ceilingCmd) Run(a *app) error {
	listener, err := load.Listen(a, c.Listen)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(server, empty{})
	stop := context.AfterFunc(a, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serve on %s: %w", c.Listen, err)
	}
	return nil
}

type empty struct{}

func (empty) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}, nil
}
