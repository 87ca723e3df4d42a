// Command rlbench measures RateLimitService servers. It measures a single server (load), or compares
// each function of rlsidecar with the least possible cost (targets).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

type commands struct {
	Load        loadCmd        `cmd:"" default:"withargs" help:"Send requests to a server and measure. This is the default command."`
	Ceiling     ceilingCmd     `cmd:"" help:"Serve an empty RateLimitService, which answers OK."`
	Targets     targetsCmd     `cmd:"" help:"Compare rlsidecar with the lowest possible cost of each operation, and print the distance from the targets."`
	HTTPCeiling httpCeilingCmd `cmd:"" name:"http-ceiling" help:"Serve HTTP with a handler that answers 200."`
	Size        sizeCmd        `cmd:"" help:"Measure what a configuration of 100,000 limits costs: start, memory, a reload, metrics."`
}

type app struct {
	context.Context
	stdout, stderr io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command := kong.Parse(&commands{}, options()...)
	if err := command.Run(&app{ctx, os.Stdout, os.Stderr}); err != nil {
		fmt.Fprintf(os.Stderr, "rlbench: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func options() []kong.Option {
	return []kong.Option{
		kong.Name("rlbench"), kong.Description("Measures Envoy RateLimitService servers."), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"comparisons": strings.Join(comparisonNames(), ", ")},
	}
}

type loadCmd struct {
	Target      string        `required:"" placeholder:"ADDR" help:"The server: host:port or unix:///path."`
	Connections int           `short:"c" default:"4"`
	Outstanding int           `short:"o" default:"16" help:"Number of requests in flight on one connection."`
	Domain      string        `default:"bench"`
	Descriptor  []string      `default:"user_id={}" sep:"none" placeholder:"KEY=VALUE,…" help:"A descriptor; {} becomes the number of the key. May be repeated."`
	Keys        int           `short:"k" default:"1" help:"Number of different keys."`
	FirstKey    int           `help:"Number of the first key."`
	InTurn      bool          `help:"Use the keys one after the other instead of at random."`
	Settle      bool          `help:"About half of the requests settle reservations of earlier requests. The domain must have settle: {key: settle, end: settle_end}."`
	Rate        float64       `help:"Open loop: requests per second. Latencies count from the time at which a request was due."`
	Requests    int64         `short:"n" help:"Number of requests after which to stop, in place of a duration."`
	Duration    time.Duration `short:"d" default:"3s"`
	Warmup      time.Duration `help:"Time for which requests are sent before the measurement."`
	PID         int           `name:"pid" help:"Process ID of the server, to report its CPU time and memory."`
	JSON        bool          `name:"json" help:"Print JSON."`
}

func (c *loadCmd) Run(a *app) error {
	r, err := load.Run(a, load.Config{
		Target: c.Target, Connections: c.Connections, Outstanding: c.Outstanding,
		Domain: c.Domain, Descriptors: c.Descriptor, Keys: c.Keys, FirstKey: c.FirstKey, InTurn: c.InTurn,
		Settle: c.Settle, Rate: c.Rate, Requests: c.Requests, Duration: c.Duration, Warmup: c.Warmup, PID: c.PID,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		if err := json.NewEncoder(a.stdout).Encode(r); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(a.stdout, &r)
	}
	if n := r.Failed(); n > 0 {
		return fmt.Errorf("%d requests failed", n)
	}
	return nil
}
