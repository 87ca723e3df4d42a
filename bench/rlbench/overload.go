package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

type overloadCmd struct {
	sidecar

	Redis       string        `default:"redis-server" placeholder:"FILE" help:"The redis-server program. Required unless --only memory is given."`
	Only        []string      `enum:"memory,redis" default:"memory,redis" help:"Store of the buckets: memory or redis."`
	Connections []int         `default:"1,500" help:"Number of connections that send more than the server can decide."`
	Times       []float64     `default:"2,5" help:"Load, as a multiple of the server's capacity."`
	Descriptors int           `default:"20" help:"Number of descriptors of a request. With more descriptors, the server's share of the processor time is larger."`
	InFlight    []int         `default:"0,1024" help:"Largest numbers of requests without an answer, of all connections together; 0 is no bound. Envoy's circuit breaker max_requests is such a bound, 1024 by default."`
	Deadline    time.Duration `default:"20ms" help:"Deadline of a request; a later answer counts as failed. Envoy's default is 20ms."`
	Duration    time.Duration `short:"d" default:"2s" help:"Duration of one measurement."`
	Repeats     int           `default:"3" help:"Number of measurements of each."`
}

// Run measures a server that receives more requests than it can decide:
//
//   - the decisions in time per second, compared with the best such rate
//   - the share of decisions in time on another connection with few requests
//   - the time until the server works normally again
//
// The server and Redis run on one processor, and rlbench on the others, so that rlbench uses no time of the
// server's processor.
func (c *overloadCmd) Run(a *app) error {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintf(a.stdout, "%s; load average %s\n", machine(), loadAverage())
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "store, connections, in flight\tsent a second\tof the capacity\tdecided in time\tof the peak\tdenied in time\tlate\tnot sent\tbroken\tCPU us\tRSS MiB\tquiet: decided\trecovered after ms\t")
	for _, store := range c.Only {
		for _, n := range c.Connections {
			for _, inFlight := range c.InFlight {
				if err := c.rows(a, w, dir, store, n, inFlight); err != nil {
					return err
				}
				w.Flush()
			}
		}
	}
	return nil
}

type overloaded struct {
	*overloadCmd
	*child
	connections int
	inFlight    int // the largest number of requests without an answer; 0 is no bound
}

func (c *overloadCmd) rows(a *app, w *tabwriter.Writer, dir, store string, connections, inFlight int) error {
	var more []string
	if store == "redis" {
		r, address, err := startRedis(a, c.Redis, dir)
		if err != nil {
			return err
		}
		defer r.stop()
		more = append(more, "--redis-url", "redis://"+address)
	}
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	server, err := c.serve(a, dir, configured([]string{"user_id={}"}), listen, append(more, "--grpc-listen", listen)...)
	if err != nil {
		return err
	}
	defer server.stop()
	if err := errors.Join(pin(server.pid(), 0), pin(os.Getpid(), 1)); err != nil {
		return err
	}
	o := &overloaded{c, server, connections, inFlight}
	capacity, err := o.capacity(a)
	if err != nil {
		return err
	}
	peak, bound := 0.0, "any"
	if inFlight > 0 {
		bound = strconv.Itoa(inFlight)
	}
	for _, times := range append([]float64{0.8, 1}, c.Times...) {
		var all []overload
		for range c.Repeats {
			m, err := o.measure(a, times*capacity)
			if err != nil {
				return err
			}
			all = append(all, m)
		}
		slices.SortFunc(all, func(x, y overload) int { return int(x.Goodput() - y.Goodput()) })
		m := all[len(all)/2]
		if m.Broken > 0 {
			fmt.Fprintf(a.stderr, "connections failed: %d; the reason of the server: %s\n", m.Broken, m.Reason)
		}
		peak = max(peak, m.Goodput())
		fmt.Fprintf(w, "%s, %d, %s\t%.0f\t%.1f\t%.0f\t%.2f\t%.0f\t%.0f\t%.0f\t%d\t%.1f\t%d\t%.0f %%\t%.0f\t\n", store, connections, bound,
			float64(m.Due-m.Unsent)/m.Seconds, times, m.Goodput(), m.Goodput()/peak, float64(m.Denied)/m.Seconds, float64(m.Late)/m.Seconds,
			float64(m.Unsent)/m.Seconds, m.Broken, m.cpu.Seconds()*1e6/float64(m.OK+m.Denied+1), m.rss>>20,
			100*float64(m.quiet.OK)/float64(max(1, m.quiet.Due)), float64(m.recovered.Microseconds())/1000)
	}
	return nil
}

type overload struct {
	load.FloodResult
	quiet     load.FloodResult // of another connection with few requests
	cpu       time.Duration
	rss       int64         // in bytes
	recovered time.Duration // the time after which the quiet connection is no longer disturbed
}

func (o *overloaded) descriptors() []string {
	d := make([]string, o.Descriptors)
	for i := range d {
		d[i] = "user_id=" + strconv.Itoa(i) + "-{}"
	}
	return d
}

// capacity returns the number of decisions per second in a closed loop. At most 64 requests are outstanding. With more,
// requests wait in the server until it denies them, and denials are no decisions.
func (o *overloaded) capacity(a *app) (float64, error) {
	const outstanding = 64
	connections := min(o.connections, outstanding)
	r, err := load.Run(a, load.Config{
		Target: o.address, Connections: connections, Outstanding: outstanding / connections, Descriptors: o.descriptors(), Keys: 1000,
		Warmup: o.Duration / 2, Duration: o.Duration, PID: o.pid(),
	})
	fmt.Fprintln(a.stderr, &r)
	return r.PerSecond, err
}

func (o *overloaded) measure(ctx context.Context, rate float64) (m overload, err error) {
	flood := load.FloodConfig{
		Target: o.address, Connections: o.connections, Descriptors: o.descriptors(), Keys: 1000,
		Rate: rate, Deadline: o.Deadline, Resets: true, Duration: o.Duration, InFlight: o.inFlight,
	}
	quiet := flood
	quiet.InFlight = 0
	quiet.Connections, quiet.Rate, quiet.Descriptors = 1, 200, []string{"user_id=quiet{}"}
	done := make(chan error, 1)
	go func() {
		var err error
		m.quiet, err = load.Flood(ctx, quiet)
		done <- err
	}()
	before, err := load.CPU(o.pid())
	if err != nil {
		return m, err
	}
	m.FloodResult, err = load.Flood(ctx, flood)
	if err := errors.Join(err, <-done); err != nil {
		return m, err
	}
	after, err := load.CPU(o.pid())
	m.cpu = after - before
	if err == nil {
		m.rss, _, err = load.Memory(o.pid())
	}
	if err != nil {
		return m, err
	}
	return m, o.recovery(ctx, quiet, &m)
}

// recovery measures how long quiet requests are disturbed after an overload. It sends them in steps of 20 ms
// for a second, and records the end of the last step in which the server did not decide all of them. Without
// such a step, m.recovered stays 0.
func (o *overloaded) recovery(ctx context.Context, quiet load.FloodConfig, m *overload) error {
	quiet.Duration, quiet.Rate = 20*time.Millisecond, 500
	for start := time.Now(); time.Since(start) < time.Second; {
		r, err := load.Flood(ctx, quiet)
		if err != nil {
			return err
		}
		if r.OK < r.Due {
			m.recovered = time.Since(start)
		}
	}
	return nil
}

// pin makes a process run on the first processor if group is 0, and otherwise on all other processors. It does nothing
// on a machine with one processor.
func pin(pid, group int) error {
	var set unix.CPUSet
	n := runtime.NumCPU()
	if n < 2 {
		return nil
	}
	if group == 0 {
		set.Set(0)
	} else {
		for i := 1; i < n; i++ {
			set.Set(i)
		}
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task[strings.LastIndexByte(task, '/')+1:])
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pin process %d to a processor: %w", pid, err)
		}
	}
	return nil
}
