package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

type memoryCmd struct {
	sidecar

	Keys []int `default:"0,100000,1000000,2000000,10000000" help:"Numbers of distinct keys after which the memory is printed."`
}

// Run sends each key once. rlsidecar keeps a bounded number of buckets. It denies further keys, and its
// memory must not grow because of them.
func (c *memoryCmd) Run(a *app) error {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := c.start(a, dir, load.Config{Descriptors: []string{"hot_id={}"}})
	if err != nil {
		return err
	}
	defer server.stop()

	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "distinct keys\tOK\tOVER_LIMIT\tRSS MiB\tpeak MiB\tCPU us/req\t")
	var all load.Result
	for _, keys := range c.Keys {
		sent := int(all.Answers())
		var cost float64
		if n := keys - sent; n > 0 {
			r, err := load.Run(a, load.Config{
				Target: server.address, PID: server.pid(), Client: load.Raw,
				Descriptors: []string{"hot_id={}"}, FirstKey: sent, Keys: n, InTurn: true, Requests: int64(n),
			})
			switch {
			case err != nil:
				return fmt.Errorf("after %d keys: %w", sent, err)
			case r.Failed() > 0:
				return fmt.Errorf("after %d keys: errors: %v", sent, &r)
			}
			all.OK += r.OK
			all.OverLimit += r.OverLimit
			cost = r.CPU
		}
		now, peak, err := load.Memory(server.pid())
		if err != nil {
			return fmt.Errorf("after %d keys: %w", keys, err)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%.1f\t\n", keys, all.OK, all.OverLimit, now>>20, peak>>20, cost)
	}
	return w.Flush()
}
