package main

import (
	"context"
	"errors"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/server"
)

type healthcheckCmd struct {
	HTTPListen string        `name:"http-listen" default:"127.0.0.1:8080" placeholder:"ADDR" setting:"flag" help:"Address of the HTTP listener, as given to serve. If empty, check the gRPC listener (${default})."`
	GRPCListen string        `name:"grpc-listen" default:"127.0.0.1:8081" placeholder:"ADDR" setting:"flag" help:"Address of the gRPC listener, as given to serve. Used if --http-listen is empty (${default})."`
	TLSCert    string        `name:"tls-cert" placeholder:"FILE" setting:"flag" help:"As given to serve. If it is set, the gRPC listener is checked over TLS; the file itself is not read."`
	Live       bool          `help:"Also succeed if the sidecar answers but is not ready. Use it for startup and liveness probes: restarting a sidecar that waits for Redis does not help."`
	Timeout    time.Duration `default:"1s" help:"How long to wait for the answer (${default})."`
}

func (healthcheckCmd) Help() string {
	return `Checks the HTTP listener (/readyz) or, if there is none, the gRPC listener
(grpc.health.v1). Give it the same flags or variables as serve. Exits with 0 if the
sidecar is ready, and with 1 if it is not or does not answer. With --live, any answer
makes it exit with 0.

Use it for HEALTHCHECK in an image, and for exec probes. It cannot check a gRPC listener
that requires client certificates.

Example:

  rlsidecar healthcheck
  rlsidecar healthcheck --live
  rlsidecar healthcheck --http-listen '' --grpc-listen unix:///run/rlsidecar.sock`
}

func (c *healthcheckCmd) Run(a *app) error {
	if a.reference.err != nil {
		return exitError{exitUsage, a.reference.err}
	}
	ctx, cancel := context.WithTimeout(a.ctx, c.Timeout)
	defer cancel()
	var err error
	switch {
	case c.HTTPListen != "":
		err = server.CheckHTTP(ctx, c.HTTPListen)
	case c.GRPCListen != "":
		err = server.CheckGRPC(ctx, c.GRPCListen, c.TLSCert != "")
	default:
		return exitError{exitUsage, errors.New("there is no listener to check; give --http-listen or --grpc-listen")}
	}
	if c.Live && errors.Is(err, server.ErrNotReady) {
		return nil // with --live, any answer is good
	}
	if err != nil {
		return exitError{exitNo, err} // Docker and Kubernetes interpret this exit code as "unhealthy"
	}
	return nil
}
