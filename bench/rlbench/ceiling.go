package main

import (
	"context"
	"fmt"

	"github.com/rlsidecar/rlsidecar/bench/empty"
	"github.com/rlsidecar/rlsidecar/bench/load"
)

// ceilingCmd runs a server with the least possible cost. The server works on HTTP/2 frames, and answers every request
// without a decision.
type ceilingCmd struct {
	Listen string `required:"" placeholder:"ADDR" help:"Address of the server: host:port or unix:///path."`
}

func (c *ceilingCmd) Run(a *app) error {
	listener, err := load.Listen(a, c.Listen)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(a, func() { _ = listener.Close() })
	defer stop()
	if err := empty.Serve(listener); err != nil {
		return fmt.Errorf("serve on %s: %w", c.Listen, err)
	}
	return nil
}
