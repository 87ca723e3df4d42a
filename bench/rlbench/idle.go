package main

import (
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

type idleCmd struct {
	sidecar

	Connections int           `short:"c" default:"10000" help:"Number of connections."`
	Settle      time.Duration `default:"3s" help:"Time to wait before memory is measured."`
}

// Run measures the cost of idle connections. It measures connections that have never sent a request, and
// connections that have sent one.
func (c *idleCmd) Run(a *app) error {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d idle connections\tMiB before\tMiB with them\tKiB each\t\n", c.Connections)
	for _, protocol := range []string{"grpc", "http"} {
		for name, used := range map[string]bool{"new": false, "after a request": true} {
			if err := c.row(a, w, dir, protocol, name, used); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}

func (c *idleCmd) row(a *app, w *tabwriter.Writer, dir, protocol, name string, used bool) error {
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	most := fmt.Sprint(c.Connections + 16)
	for _, name := range []string{"RLSIDECAR_GRPC_MAX_CONNECTIONS", "RLSIDECAR_HTTP_MAX_CONNECTIONS"} {
		if err := os.Setenv(name, most); err != nil {
			return err
		}
	}
	server, err := c.serve(a, dir, configured([]string{"user_id={}"}), listen, "--"+protocol+"-listen", listen)
	if err != nil {
		return err
	}
	defer server.stop()
	first, err := load.Idle(a, listen, protocol, 8, used) // so that allocations of the first request are not counted
	if err != nil {
		return err
	}
	before, _, err := load.Memory(server.pid())
	if err != nil {
		return err
	}
	connections, err := load.Idle(a, listen, protocol, c.Connections, used)
	if err != nil {
		return err
	}
	time.Sleep(c.Settle)
	after, _, err := load.Memory(server.pid())
	for _, conn := range append(connections, first...) {
		_ = conn.Close()
	}
	fmt.Fprintf(w, "%s, %s\t%d\t%d\t%.1f\t\n", protocol, name, before>>20, after>>20, float64(after-before)/float64(c.Connections)/1024)
	return err
}
