package main

import (
	"context"
	"errors"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/server"
)

type healthcheckCmd struct {
	HTTPListen string        `name:"http-listen" default:"127.0.0.1:8080" placeholder:"ADDR" env:"RLSIDECAR_HTTP_LISTEN" help:"As given to serve; empty: ask the gRPC port (${default})."`
	GRPCListen string        `name:"grpc-listen" default:"127.0.0.1:8081" placeholder:"ADDR" env:"RLSIDECAR_GRPC_LISTEN" help:"As given to serve; asked where there is no HTTP port (${default})."`
	TLSCert    string        `name:"tls-cert" placeholder:"FILE" env:"RLSIDECAR_TLS_CERT" help:"As given to serve: with one the gRPC port is asked by TLS. It is not read."`
	Live       bool          `help:"Succeed also while the server is not ready: for startup and liveness probes, which must not restart a server that waits for Redis."`
	Timeout    time.Duration `default:"1s" help:"How long to wait for the answer (${default})."`
}

// Help is shown by healthcheck --help.
func (healthcheckCmd) Help() string {
	return `Asks the server on this machine whether it takes requests: its HTTP port
(/readyz), or where it has none its gRPC port (grpc.health.v1). The addresses are
those that serve was given, in the same flags and variables. Exits 0 if it is
ready; 1 if not, or if there is no answer. With --live it exits 0 whenever there is
an answer. For HEALTHCHECK in an image and for exec probes; a gRPC port that asks
for client certificates cannot be asked.

Example:

  rlsidecar healthcheck
  rlsidecar healthcheck --live
  rlsidecar healthcheck --http-listen '' --grpc-listen unix:///run/rlsidecar.sock`
}

// Run asks.
func (c *healthcheckCmd) Run(a *app) error {
	if a.reference.err != nil {
		return exitError{exitUsage, a.reference.err}
	}
	ctx, cancel := context.WithTimeout(a.ctx, c.Timeout)
	defer cancel()
	var err error
	switch {
	case c.HTTPListen != "":
		err = server.AskHTTP(ctx, c.HTTPListen)
	case c.GRPCListen != "":
		err = server.AskGRPC(ctx, c.GRPCListen, c.TLSCert != "")
	default:
		return exitError{exitUsage, errors.New("there is no port to ask: give --http-listen or --grpc-listen")}
	}
	if c.Live && errors.Is(err, server.ErrNotReady) {
		return nil // it answers
	}
	if err != nil {
		return exitError{exitNo, err} // for Docker and Kubernetes, no answer is "unhealthy" too
	}
	return nil
}
